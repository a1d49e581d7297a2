// A program linked to libcuda: prints where its own references to the driver's exports were bound.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

// Not declared by cuda.h without the per-thread build, which would rename the others.
extern "C" CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                        unsigned, CUstream, void**, void**);

int main() {
  void* const addresses[] = {
      reinterpret_cast<void*>(&cuInit),
      reinterpret_cast<void*>(&cuMemAlloc),
      reinterpret_cast<void*>(&cuMemAlloc_v2),
      reinterpret_cast<void*>(&cuMemFree_v2),
      reinterpret_cast<void*>(&cuLaunchKernel),
      reinterpret_cast<void*>(&cuLaunchKernel_ptsz),
      reinterpret_cast<void*>(&cuLaunchKernelEx),
      reinterpret_cast<void*>(&cuMemcpyHtoDAsync_v2),
      reinterpret_cast<void*>(&cuStreamBeginCapture),
      reinterpret_cast<void*>(&cuStreamBeginCapture_v2),
      reinterpret_cast<void*>(&cuGetProcAddress),
      reinterpret_cast<void*>(&cuGetProcAddress_v2),
      reinterpret_cast<void*>(&cuDeviceGetCount),
      reinterpret_cast<void*>(&cuMemCreate),
  };
  for (void* address : addresses) {
    Dl_info info;
    if (dladdr(address, &info) == 0 || info.dli_sname == nullptr) return 1;
    const char* slash = std::strrchr(info.dli_fname, '/');
    std::printf("bound to %s %s\n", info.dli_sname, slash != nullptr ? slash + 1 : info.dli_fname);
  }
}
