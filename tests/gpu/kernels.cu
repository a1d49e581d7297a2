// The kernels that the probe measures with. extern "C" gives them plain names, under which a simulated GPU can be told
// what they touch (probe_kernels.cpp).
#include <algorithm>

#include "tests/gpu/probe.hpp"

extern "C" {

__global__ void probe_empty() {}

__global__ void probe_spin(std::uint64_t ns) {
  std::uint64_t start;
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < ns);
}

__global__ void probe_write(float* data, std::size_t count, float value) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) data[i] = value;
}

__global__ void probe_read(const float* data, std::size_t count, float* sink) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  float sum = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) sum += data[i];
  if (sum == 1234.5F) *sink = sum;  // never: keeps the reads
}

__global__ void probe_triad(float* a, const float* b, const float* c, std::size_t count) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    a[i] = b[i] + 3 * c[i];
}

__global__ void probe_gather(float* out, const float* in, std::size_t count) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    out[i] = in[(z ^ (z >> 31)) % count];
  }
}

__global__ void probe_gemm(float* out, const float* a, const float* b, int n) {
  constexpr int kTile = 16;
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile];
  const int row = static_cast<int>(blockIdx.y) * kTile + static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * kTile + static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int k = 0; k < n; k += kTile) {
    tile_a[threadIdx.y][threadIdx.x] = a[row * n + k + static_cast<int>(threadIdx.x)];
    tile_b[threadIdx.y][threadIdx.x] = b[(k + static_cast<int>(threadIdx.y)) * n + column];
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  out[row * n + column] = sum;
}

// One thread a block: the places fault side by side instead of warp by warp.
__global__ void probe_touch(char* data, std::size_t stride, std::size_t count, int writes, std::size_t mix) {
  const std::size_t place = blockIdx.x * mix % count;
  auto* const word = reinterpret_cast<volatile unsigned*>(data + place * stride);
  if (writes != 0) {
    *word = 7;
  } else {
    static_cast<void>(*word);
  }
}

}  // extern "C"

namespace probe {
namespace {

constexpr unsigned kThreads = 256;

unsigned wide_grid() {
  static const int processors = [] {
    int count = 0;
    CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    return count;
  }();
  return static_cast<unsigned>(processors) * 8;
}

}  // namespace

void launch_empty(cudaStream_t stream) {
  probe_empty<<<1, 1, 0, stream>>>();
  CHECK(cudaGetLastError());
}

void launch_four_parameters(float* a, const float* b, const float* c, cudaStream_t stream) {
  probe_triad<<<1, 32, 0, stream>>>(a, b, c, 0);
  CHECK(cudaGetLastError());
}

void launch_spin(double ms, cudaStream_t stream) {
  probe_spin<<<1, 1, 0, stream>>>(static_cast<std::uint64_t>(ms * 1e6));
  CHECK(cudaGetLastError());
}

void launch_write(float* data, std::size_t count, float value, cudaStream_t stream) {
  probe_write<<<wide_grid(), kThreads, 0, stream>>>(data, count, value);
  CHECK(cudaGetLastError());
}

void launch_read(const float* data, std::size_t count, float* sink, cudaStream_t stream) {
  probe_read<<<wide_grid(), kThreads, 0, stream>>>(data, count, sink);
  CHECK(cudaGetLastError());
}

void launch_triad(float* a, const float* b, const float* c, std::size_t count, cudaStream_t stream) {
  probe_triad<<<std::min<std::size_t>(wide_grid(), (count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(a, b, c,
                                                                                                              count);
  CHECK(cudaGetLastError());
}

void launch_gather(float* out, const float* in, std::size_t count, cudaStream_t stream) {
  probe_gather<<<wide_grid(), kThreads, 0, stream>>>(out, in, count);
  CHECK(cudaGetLastError());
}

void launch_gemm(float* out, const float* a, const float* b, int n, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(n / 16);
  probe_gemm<<<dim3(tiles, tiles), dim3(16, 16), 0, stream>>>(out, a, b, n);
  CHECK(cudaGetLastError());
}

void launch_touch(char* data, std::size_t stride, std::size_t count, bool writes, std::size_t mix,
                  cudaStream_t stream) {
  probe_touch<<<static_cast<unsigned>(count), 1, 0, stream>>>(data, stride, count, writes ? 1 : 0, mix);
  CHECK(cudaGetLastError());
}

double timed_write(const Managed& region, cudaStream_t stream, float value) {
  return timed_launch(stream, [&] { launch_write(region.floats(), region.bytes() / sizeof(float), value, stream); });
}

double timed_read(const Managed& region, cudaStream_t stream) {
  return timed_launch(stream,
                      [&] { launch_read(region.floats(), region.bytes() / sizeof(float), region.floats(), stream); });
}

}  // namespace probe
