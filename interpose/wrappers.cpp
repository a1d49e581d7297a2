// The exported entry points: for every HOOK row of hooks.def the function of that name, in the shape
//   gate → re-entrancy guard → count → handler; else the real call.
// Not noexcept: cuda.h's prototypes are not, and GCC refuses the redeclaration.

// Old and new ABI under their own names: without it the header's macros would rename rows.
#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
#include <cudaTypedefs.h>
#include <cxxabi.h>
#include <unwind.h>

#include <type_traits>

#include "interpose/gate.hpp"
#include "interpose/handlers.hpp"
#include "interpose/hook_counts.hpp"
#include "interpose/in_shim.hpp"
#include "interpose/real_driver.hpp"

namespace hmshim::interpose {
namespace {

// cuInit is what opens the gate.
template <HookId kId>
[[nodiscard]] bool runs_handler() noexcept {
  return gate().runs_handlers() || (kId == HookId::cuInit && gate().is_armed());
}

// The C++ runtime inside this library is a copy whose unwinder initialises itself at its own first use. When a thread
// is cancelled inside a driver call, the C library's unwinder runs the landing pads below before that, and libgcc
// aborts (unwind-dw2.c, _Unwind_SetGR). One look at the stack is a first use.
void prepare_for_thread_cancellation() noexcept {
  _Unwind_Backtrace([](_Unwind_Context*, void*) { return _URC_END_OF_STACK; }, nullptr);
}

template <HookId kId, typename RealCall, typename Handler>
CUresult enter(const void* caller, bool exists, RealCall real_call, Handler handler) {
  // Reached without the driver having the function only through a binding that the loader made to this export.
  if (!exists) [[unlikely]]
    return CUDA_ERROR_NOT_SUPPORTED;
  if (InShim::is_nested()) [[unlikely]]
    return real_call();
  if (!runs_handler<kId>()) [[unlikely]] {
    count_bypass(kId);
    return real_call();
  }
  count_hit(kId);
  if constexpr (kId == HookId::cuInit) prepare_for_thread_cancellation();
  const InShim inside(caller);
  try {
    return handler();
  } catch (const abi::__forced_unwind&) {
    throw;  // the thread is being cancelled: glibc aborts the process when this does not go on
  } catch (...) {
    gate().pass_through(Reason::internal_error);
    return real_call();
  }
}

}  // namespace
}  // namespace hmshim::interpose

#define HMSHIM_PFN_legacy(type) type
#define HMSHIM_PFN_ptsz(type) type##_ptsz
#define HMSHIM_PFN_ptds(type) type##_ptds

#define HOOK(base, symbol, since, flavour, need, effect, params, args)                                  \
  static_assert(std::is_same_v<HMSHIM_PFN_##flavour(PFN_##base##_v##since), CUresult(CUDAAPI*) params>, \
                "hooks.def: the parameters of " #symbol " are not those of PFN_" #base "_v" #since);    \
  extern "C" CUresult CUDAAPI symbol params {                                                           \
    const auto real_call = hmshim::interpose::real().symbol;                                            \
    return hmshim::interpose::enter<hmshim::interpose::HookId::symbol>(                                 \
        __builtin_return_address(0), real_call != nullptr, [&] { return real_call args; },              \
        [&] { return hmshim::interpose::on_##symbol args; });                                           \
  }
#define RESOLVE(base, symbol, since, flavour, params, args)
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
