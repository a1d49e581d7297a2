// Three arrays, then small allocations until there is no more, then a launch on the arrays: it must still be able to
// run.
#include "tests/guests/sum.hpp"

int main() {
  constexpr std::size_t kElements = std::size_t{2} << 20;
  guests::Array out(kElements, 0), one(kElements, 1), two(kElements, 2);
  void* small = nullptr;
  int count = 0;
  cudaError_t error = cudaSuccess;
  while ((error = cudaMalloc(&small, 512 << 10)) == cudaSuccess && count < 100000) ++count;
  std::printf("%s\n", cudaGetErrorName(error));
  static_cast<void>(cudaGetLastError());
  guest_sum<<<guests::blocks(kElements), 256>>>(out.data(), one.data(), two.data(), kElements);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  out.print("out");
}
