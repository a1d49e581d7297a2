// Makes the runtime resolve the driver. What the call answers does not matter: the runtime asks for all its entry
// points first.
#include <cuda_runtime_api.h>

#include <cstdio>

int main() {
  int count = 0;
  std::printf("cudaGetDeviceCount: %d\n", cudaGetDeviceCount(&count));
}
