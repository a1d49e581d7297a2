// A program whose communication library, named by the argument, allocates a buffer and shares it.
#include <cuda.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>

int main(int argc, char** argv) {
  void* library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : nullptr;
  if (library == nullptr) {
    std::fprintf(stderr, "usage: comm LIBRARY\n");
    return 2;
  }
  auto* allocate = reinterpret_cast<CUresult (*)(CUdeviceptr*, std::size_t)>(dlsym(library, "comm_allocate"));
  auto* share = reinterpret_cast<CUresult (*)(CUipcMemHandle*, CUdeviceptr)>(dlsym(library, "comm_share"));
  CUdevice device = 0;
  CUcontext context = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
    return 1;
  CUdeviceptr buffer = 0;
  CUipcMemHandle handle;
  for (int round = 0; round < 2; ++round) {
    if (allocate(&buffer, std::size_t{4} << 20) != CUDA_SUCCESS) return 1;
    std::printf("shared -> %d\n", static_cast<int>(share(&handle, buffer)));
    if (cuMemFree(buffer) != CUDA_SUCCESS) return 1;
  }
}
