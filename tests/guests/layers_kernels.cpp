// The kernels of layers.cu for the simulated GPU: they touch all of their tensors for as long as the launch says.
#include <cstdint>

#include "tests/guests/host_body.hpp"
#include "tests/guests/layers.hpp"

namespace {

void forward(float* out, const float* in, const float* weight, std::size_t count, std::size_t) {
  for (std::size_t i = 0; i < count; i += layers::kStride) layers::forward(out, in, weight, i);
}
void backward(float* gradient, const float* activation, const float* weight, float* weight_gradient, std::size_t count,
              std::size_t) {
  for (std::size_t i = 0; i < count; i += layers::kStride)
    layers::backward(gradient, activation, weight, weight_gradient, i);
}
void update(float* weight, const float* weight_gradient, std::size_t count, std::size_t) {
  for (std::size_t i = 0; i < count; i += layers::kStride) layers::update(weight, weight_gradient, i);
}

// The pointers come first; count and duration are the last two parameters.
void describe(const simgpu_launch* launch, simgpu_footprint* footprint) {
  const std::size_t tensors = launch->parameter_count - 2;
  const auto count = guests::parameter<std::size_t>(launch, tensors);
  for (std::size_t i = 0; i < tensors; ++i) {
    simgpu_touch(footprint, guests::parameter<std::uint64_t>(launch, i), count * sizeof(float), SIMGPU_READ_WRITE);
  }
  simgpu_set_duration_ns(footprint, static_cast<std::int64_t>(guests::parameter<std::size_t>(launch, tensors + 1)));
}

}  // namespace

extern "C" void simgpu_kernels() {
  simgpu_register("layers_forward", guests::body<forward>);
  simgpu_register("layers_backward", guests::body<backward>);
  simgpu_register("layers_update", guests::body<update>);
  for (const char* kernel : {"layers_forward", "layers_backward", "layers_update"}) {
    simgpu_register_footprint(kernel, describe);
  }
}
