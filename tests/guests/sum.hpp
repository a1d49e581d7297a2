#pragma once
// out = a + b: what the small guests compute, with its kernels, its operands and its check.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace guests {

/// As much as a launch may carry by value on every device, with pointers far inside.
struct SumArguments {
  float* out;
  unsigned char before[2000];
  const float* a;
  unsigned char between[1000];
  const float* b;
  std::size_t count;
  unsigned char after[4096 - 3032];
};
static_assert(sizeof(SumArguments) == 4096);

/// Two tensors behind descriptors (CUtensorMap), which hide their addresses.
struct alignas(64) TensorMapArguments {
  unsigned char out[128];
  unsigned char in[128];
  std::size_t count;
};

}  // namespace guests

#ifdef __CUDACC__
#include <cuda_runtime.h>

// extern "C" gives the kernels plain names, under which a simulated GPU can be given their host bodies.
extern "C" __global__ void guest_sum(float* out, const float* a, const float* b, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = a[i] + b[i];
}

extern "C" __global__ void guest_sum_struct(const guests::SumArguments arguments) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < arguments.count) arguments.out[i] = arguments.a[i] + arguments.b[i];
}

/// out = 2 * in. A device reaches tensors behind descriptors by bulk copies, which this stands for.
extern "C" __global__ void guest_double_map(const __grid_constant__ guests::TensorMapArguments arguments) {
  if (arguments.count == 0) __trap();
}

namespace guests {

constexpr unsigned kThreads = 256;

inline unsigned blocks(std::size_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

/// Ends the guest with status 1 on an error.
inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) guests::check(call, #call)

/// A device array, one cudaMalloc.
class Array {
 public:
  explicit Array(std::size_t count) : count_(count) { CHECK(cudaMalloc(&data_, count * sizeof(float))); }
  Array(std::size_t count, float value) : Array(count) {
    const std::vector<float> values(count, value);
    CHECK(cudaMemcpy(data_, values.data(), count * sizeof(float), cudaMemcpyHostToDevice));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { CHECK(cudaFree(data_)); }

  float* data() const { return data_; }

  /// Prints the value that all elements have, or ends the guest with status 1 naming the first that has another.
  void print(const char* name) const {
    std::vector<float> values(count_);
    CHECK(cudaMemcpy(values.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < count_; ++i) {
      if (values[i] == values[0]) continue;
      std::printf("%s[%zu] is %g where %s[0] is %g\n", name, i, values[i], name, values[0]);
      std::exit(1);
    }
    std::printf("%s %g\n", name, values[0]);
  }

 private:
  float* data_ = nullptr;
  std::size_t count_;
};

}  // namespace guests
#endif
