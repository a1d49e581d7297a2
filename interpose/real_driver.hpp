// The driver behind the wrappers: one pointer per wrapped entry point of hooks.def, null where the driver lacks it.
#pragma once

#include <atomic>
#include <optional>

#include "interpose/driver_abi.hpp"
#include "interpose/hook_id.hpp"

namespace hmshim::interpose {

struct RealDriver {
#define HOOK(base, symbol, since, flavour, need, effect, params, args) CUresult(CUDAAPI* symbol) params = nullptr;
#define RESOLVE(base, symbol, since, flavour, params, args) CUresult(CUDAAPI* symbol) params = nullptr;
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
};

namespace detail {
extern constinit RealDriver real_driver;
extern constinit std::atomic<bool> real_driver_is_filled;
const RealDriver& fill_real_driver() noexcept;
}  // namespace detail

// The driver the guest uses: the libcuda.so.1 already loaded, else the one the loader finds. Filled at the first call
// without a lock (threads may fill it side by side, and libcuda's own constructors may call in); all pointers are null
// while there is no libcuda.
[[nodiscard]] inline const RealDriver& real() noexcept {
  if (detail::real_driver_is_filled.load(std::memory_order_acquire)) [[likely]]
    return detail::real_driver;
  return detail::fill_real_driver();
}

// Any export of the driver by its ELF name, hooked or not, never hmshim's own wrapper; null where the driver lacks it.
[[nodiscard]] void* real_symbol(const char* name) noexcept;

// Whether the driver has the entry point.
[[nodiscard]] bool has(const RealDriver& driver, HookId id) noexcept;

// The first row marked `required` that the driver lacks: without it hmshim cannot work.
[[nodiscard]] std::optional<HookId> first_missing_required(const RealDriver& driver) noexcept;

}  // namespace hmshim::interpose
