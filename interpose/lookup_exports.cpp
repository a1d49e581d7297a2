// The ways in that are asked for an address: dlsym (dlsym_<arch>.S) and the cuGetProcAddress family. The real answer
// comes first; where it is the driver's function of a hooked row, the wrapper takes its place.
//
// The answers do not depend on the gate: a lookup repeated later must give the same address. A closed gate is the
// wrapper's business. cudaGetDriverEntryPoint needs no export: the runtime passes it on to the cuGetProcAddress it was
// given, which is the wrapper here. (An export would break programs whose runtime is loaded RTLD_LOCAL, out of
// RTLD_NEXT's reach.)

#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
// Exported by some drivers; cuda.h only has it as an inline function, for per-thread-stream builds.
extern "C" CUresult CUDAAPI cuGetProcAddress_v2_ptsz(const char* symbol, void** pfn, int driverVersion,
                                                     cuuint64_t flags, CUdriverProcAddressQueryResult* status);
#pragma GCC visibility pop
#include <cudaTypedefs.h>
#include <dlfcn.h>

#include <type_traits>

#include "interpose/hook_counts.hpp"
#include "interpose/lookup.hpp"
#include "interpose/real_dlsym.hpp"
#include "interpose/real_driver.hpp"

using PFN_cuGetProcAddress_v12000_ptsz = PFN_cuGetProcAddress_v12000;

#define HMSHIM_PFN_legacy(type) type
#define HMSHIM_PFN_ptsz(type) type##_ptsz
#define HOOK(base, symbol, since, flavour, need, effect, params, args)
#define RESOLVE(base, symbol, since, flavour, params, args)                                             \
  static_assert(std::is_same_v<HMSHIM_PFN_##flavour(PFN_##base##_v##since), CUresult(CUDAAPI*) params>, \
                "hooks.def: the parameters of " #symbol " are not those of PFN_" #base "_v" #since);
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS

namespace hmshim::interpose {
namespace {

// Indexed by HookId. Filled by the loader, before any code runs.
void* const kWrappers[] = {
#define HOOK(base, symbol, since, flavour, need, effect, params, args) reinterpret_cast<void*>(&::symbol),
#define RESOLVE(base, symbol, since, flavour, params, args) reinterpret_cast<void*>(&::symbol),
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
};

// libcuda.so, libcuda.so.1, libcuda.so.580.65.06, and libcuda.so.1.1 behind WSL's libcuda.so.1.
bool lies_in_libcuda(const void* address) noexcept {
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return false;
  const char* file = info.dli_fname;
  for (const char* c = file; *c != '\0'; ++c) {
    if (*c == '/') file = c + 1;
  }
  for (const char* c = "libcuda.so"; *c != '\0'; ++c, ++file) {
    if (*file != *c) return false;
  }
  return true;
}

void* answer_hooked_name(void* handle, const char* name) {
  void* answer = real_dlsym()(handle, name);
  if (answer == nullptr || !lies_in_libcuda(answer)) return answer;
  return kWrappers[index_of(find_symbol(name)->id)];
}

const void* ask_driver(const char* base, int version, cuuint64_t flags) {
  void* address = nullptr;
  const RealDriver& driver = real();
  const CUresult result = driver.cuGetProcAddress_v2 != nullptr
                              ? driver.cuGetProcAddress_v2(base, &address, version, flags, nullptr)
                              : driver.cuGetProcAddress(base, &address, version, flags);
  return result == CUDA_SUCCESS ? address : nullptr;
}

// Puts the wrapper in the place of the driver's answer in *pfn. A function that the driver hands out but does not
// export stays the driver's: the wrapper could not call it.
CUresult substitute(CUresult result, const char* base, void** pfn, int version) {
  if (result != CUDA_SUCCESS || pfn == nullptr) return result;
  const LookupRow* row = find_answer(base, version, *pfn, ask_driver);
  if (row != nullptr && has(real(), row->id)) *pfn = kWrappers[index_of(row->id)];
  return result;
}

}  // namespace
}  // namespace hmshim::interpose

using namespace hmshim::interpose;

// Which function is to answer dlsym(handle, name). The only library function on this path is dlvsym, once: dlsym is
// called by sanitizers and allocators that are not ready for more.
extern "C" Dlsym hmshim_dlsym_target(void* handle, const char* name) {
  // RTLD_NEXT and RTLD_DEFAULT search for the caller, by its address, and find this library's exports where it comes
  // first.
  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || find_symbol(name) == nullptr) return real_dlsym();
  return answer_hooked_name;
}

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** pfn, int driverVersion, cuuint64_t flags) {
  const auto real_call = real().cuGetProcAddress;
  if (real_call == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  count_hit(HookId::cuGetProcAddress);
  return substitute(real_call(symbol, pfn, driverVersion, flags), symbol, pfn, driverVersion);
}

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** pfn, int driverVersion, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
  const auto real_call = real().cuGetProcAddress_v2;
  if (real_call == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  count_hit(HookId::cuGetProcAddress_v2);
  return substitute(real_call(symbol, pfn, driverVersion, flags, status), symbol, pfn, driverVersion);
}

CUresult CUDAAPI cuGetProcAddress_v2_ptsz(const char* symbol, void** pfn, int driverVersion, cuuint64_t flags,
                                          CUdriverProcAddressQueryResult* status) {
  const auto real_call = real().cuGetProcAddress_v2_ptsz;
  if (real_call == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  count_hit(HookId::cuGetProcAddress_v2_ptsz);
  return substitute(real_call(symbol, pfn, driverVersion, flags, status), symbol, pfn, driverVersion);
}
