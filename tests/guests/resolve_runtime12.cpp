// Makes a CUDA 12 runtime, named by the argument, resolve the driver. What the call answers does not matter: the
// runtime asks for all its entry points first.
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  void* runtime = argc == 2 ? dlopen(argv[1], RTLD_NOW) : nullptr;
  if (runtime == nullptr) {
    std::fprintf(stderr, "usage: resolve_runtime12 LIBCUDART\n");
    return 2;
  }
  int count = 0;
  auto* get_device_count = reinterpret_cast<int (*)(int*)>(dlsym(runtime, "cudaGetDeviceCount"));
  std::printf("cudaGetDeviceCount: %d\n", get_device_count(&count));
}
