#include "interpose/real_driver.hpp"

#include <dlfcn.h>

#include "interpose/real_dlsym.hpp"

namespace hmshim::interpose {

constinit RealDriver detail::real_driver;
constinit std::atomic<bool> detail::real_driver_is_filled{false};

namespace {

constexpr RealDriver kNoDriver;

// The guest's own libcuda when it has loaded one: it may come from a path that the loader does not search.
void* libcuda() noexcept {
  void* handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return handle != nullptr ? handle : dlopen("libcuda.so.1", RTLD_LAZY);
}

// Threads that fill side by side find the same addresses. Only the first writes one, so nothing is written any more
// once a thread has seen every field: from then on plain reads are safe.
template <typename Function>
void publish(Function*& field, void* address) noexcept {
  Function* empty = nullptr;
  std::atomic_ref<Function*>(field).compare_exchange_strong(empty, reinterpret_cast<Function*>(address),
                                                            std::memory_order_relaxed);
}

}  // namespace

const RealDriver& detail::fill_real_driver() noexcept {
  void* handle = libcuda();
  if (handle == nullptr) return kNoDriver;
  const Dlsym dlsym = real_dlsym();
#define HOOK(base, symbol, since, flavour, need, effect, params, args) \
  publish(real_driver.symbol, dlsym(handle, #symbol));
#define RESOLVE(base, symbol, since, flavour, params, args) publish(real_driver.symbol, dlsym(handle, #symbol));
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
  real_driver_is_filled.store(true, std::memory_order_release);
  return real_driver;
}

void* real_symbol(const char* name) noexcept {
  void* handle = libcuda();
  return handle != nullptr ? real_dlsym()(handle, name) : nullptr;
}

bool has(const RealDriver& driver, HookId id) noexcept {
  switch (id) {
#define HOOK(base, symbol, since, flavour, need, effect, params, args) \
  case HookId::symbol:                                                 \
    return driver.symbol != nullptr;
#define RESOLVE(base, symbol, since, flavour, params, args) \
  case HookId::symbol:                                      \
    return driver.symbol != nullptr;
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
  }
  return false;
}

std::optional<HookId> first_missing_required(const RealDriver& driver) noexcept {
  constexpr bool required = true;
  constexpr bool optional = false;
#define HOOK(base, symbol, since, flavour, need, effect, params, args) \
  if (need && !has(driver, HookId::symbol)) return HookId::symbol;
#define RESOLVE(base, symbol, since, flavour, params, args)
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
  return std::nullopt;
}

}  // namespace hmshim::interpose
