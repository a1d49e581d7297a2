// Asks the runtime for entry points of the driver, as PyTorch does, and prints where the answers lie.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

int main() {
  struct {
    const char* base;
    unsigned version;
    unsigned long long flags;
  } const queries[] = {{"cuMemAlloc", 3020, cudaEnableDefault},
                       {"cuMemAlloc", 2000, cudaEnableDefault},
                       {"cuLaunchKernel", 7000, cudaEnablePerThreadDefaultStream},
                       {"cuDeviceGetCount", 2000, cudaEnableDefault}};
  for (const auto& query : queries) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(query.base, &address, query.version, query.flags, &found);
    Dl_info info;
    if (error != cudaSuccess || dladdr(address, &info) == 0 || info.dli_sname == nullptr) {
      std::fprintf(stderr, "%s: %s\n", query.base, cudaGetErrorString(error));
      return 1;
    }
    const char* slash = std::strrchr(info.dli_fname, '/');
    std::printf("%s %u -> %s %s\n", query.base, query.version, info.dli_sname,
                slash != nullptr ? slash + 1 : info.dli_fname);
  }
}
