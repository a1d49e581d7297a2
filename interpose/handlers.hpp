// What hmshim does at each wrapped call: one function per HOOK row of hooks.def, defined in on_*.cpp. A row without a
// handler does not link.
//
// A handler runs on the guest's thread, inside the re-entrancy guard (in_shim.hpp), with real().<symbol> known to
// exist. It makes the real call itself and returns the guest's result. An exception makes the wrapper turn the policy
// off for good and make the real call in the handler's place: nothing may throw once the real call has been made.
#pragma once

#include "interpose/driver_abi.hpp"

namespace hmshim::interpose {

#define HOOK(base, symbol, since, flavour, need, effect, params, args) CUresult on_##symbol params;
#define RESOLVE(base, symbol, since, flavour, params, args)
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS

}  // namespace hmshim::interpose
