#pragma once
// The arithmetic of layers.cu, for the device and for the host that stands in for it. One element in kStride is
// computed: the memory is real, the work is not.
#include <cstddef>

#ifdef __CUDACC__
#define LAYERS_BODY __host__ __device__ inline
#else
#define LAYERS_BODY inline
#endif

namespace layers {

inline constexpr std::size_t kStride = 1024;

LAYERS_BODY void forward(float* out, const float* in, const float* weight, std::size_t i) {
  out[i] = 0.5F * in[i] + weight[i];
}

/// The gradient comes in and goes out in the same place; weight is what the way back multiplies with.
LAYERS_BODY void backward(float* gradient, const float* activation, const float* weight, float* weight_gradient,
                          std::size_t i) {
  weight_gradient[i] = gradient[i] * activation[i];
  gradient[i] = 0.5F * gradient[i] + 0.001F * weight[i];
}

LAYERS_BODY void update(float* weight, const float* weight_gradient, std::size_t i) {
  weight[i] -= 0.01F * weight_gradient[i];
}

}  // namespace layers
