// Entry points of a driver of CUDA 11.4, a few: one ABI where there are two today, no cuGetProcAddress_v2, no
// cuLaunchKernelEx.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <cstring>

namespace {

constexpr int kDriverVersion = 11040;

struct Entry {
  const char* base;
  int since;
  bool per_thread;
  void* address;
};

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr_v1*, unsigned) { return CUDA_ERROR_OUT_OF_MEMORY; }
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t) { return CUDA_ERROR_OUT_OF_MEMORY; }
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void**, void**) {
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                             void**, void**) {
  return CUDA_SUCCESS;
}
CUresult cuGetProcAddress(const char* base, void** address, int version, cuuint64_t flags);

}  // extern "C"

namespace {

// Per-thread variants first: they are preferred where asked for.
const Entry kEntries[] = {
    {"cuInit", 2000, false, reinterpret_cast<void*>(&cuInit)},
    {"cuDriverGetVersion", 2020, false, reinterpret_cast<void*>(&cuDriverGetVersion)},
    {"cuMemAlloc", 3020, false, reinterpret_cast<void*>(&cuMemAlloc_v2)},
    {"cuMemAlloc", 2000, false, reinterpret_cast<void*>(&cuMemAlloc)},
    {"cuCtxSynchronize", 2000, false, reinterpret_cast<void*>(&cuCtxSynchronize)},
    {"cuLaunchKernel", 7000, true, reinterpret_cast<void*>(&cuLaunchKernel_ptsz)},
    {"cuLaunchKernel", 4000, false, reinterpret_cast<void*>(&cuLaunchKernel)},
    {"cuGetProcAddress", 11030, false, reinterpret_cast<void*>(&cuGetProcAddress)},
};

}  // namespace

CUresult cuGetProcAddress(const char* base, void** address, int version, cuuint64_t flags) {
  if (base == nullptr || address == nullptr || version > kDriverVersion) return CUDA_ERROR_INVALID_VALUE;
  *address = nullptr;
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.base, base) != 0 || entry.since > version) continue;
    if (entry.per_thread && flags != CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) continue;
    *address = entry.address;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}
