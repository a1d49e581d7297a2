// Makes one context after another, COUNT of them, and allocates in the order of a stream in each. Prints how many did.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 2 || cuInit(0) != CUDA_SUCCESS) return 2;
  int done = 0;
  for (int i = std::atoi(argv[1]); i > 0; --i) {
    CUcontext context = nullptr;
    CUdeviceptr address = 0;
#if CUDA_VERSION >= 13000
    if (cuCtxCreate(&context, nullptr, 0, 0) != CUDA_SUCCESS) return 1;
#else
    if (cuCtxCreate(&context, 0, 0) != CUDA_SUCCESS) return 1;
#endif
    done += cuMemAllocAsync(&address, std::size_t{2} << 20, nullptr) == CUDA_SUCCESS &&
            cuMemFreeAsync(address, nullptr) == CUDA_SUCCESS;
    if (cuCtxDestroy(context) != CUDA_SUCCESS) return 1;
  }
  std::printf("%d\n", done);
}
