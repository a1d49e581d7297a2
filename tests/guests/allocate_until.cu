// Allocates pieces of a given size until an allocation fails or so many bytes are there, and prints how many and why it
// stopped.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: allocate_until PIECE_BYTES MOST_BYTES\n");
    return 2;
  }
  const std::size_t piece = std::strtoull(argv[1], nullptr, 10);
  const std::size_t most = std::strtoull(argv[2], nullptr, 10);
  std::size_t got = 0;
  cudaError_t error = cudaSuccess;
  while (error == cudaSuccess && got + piece <= most) {
    void* data = nullptr;
    error = cudaMalloc(&data, piece);
    if (error == cudaSuccess) got += piece;
  }
  std::printf("got %zu, then %s\n", got, cudaGetErrorName(error));
  return error == cudaSuccess || error == cudaErrorMemoryAllocation ? 0 : 1;
}
