// One number per wrapped entry point of hooks.def.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "interpose/driver_abi.hpp"

namespace hmshim::interpose {

enum class HookId : std::uint16_t {
#define HOOK(base, symbol, since, flavour, need, effect, params, args) symbol,
#define RESOLVE(base, symbol, since, flavour, params, args) symbol,
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
};

// The exported names, indexed by HookId.
inline constexpr std::string_view kHookSymbols[] = {
#define HOOK(base, symbol, since, flavour, need, effect, params, args) #symbol,
#define RESOLVE(base, symbol, since, flavour, params, args) #symbol,
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
};

inline constexpr std::size_t kHookCount = sizeof kHookSymbols / sizeof kHookSymbols[0];

[[nodiscard]] constexpr std::size_t index_of(HookId id) noexcept { return static_cast<std::size_t>(id); }
[[nodiscard]] constexpr std::string_view to_string(HookId id) noexcept { return kHookSymbols[index_of(id)]; }

}  // namespace hmshim::interpose
