// The kernels of sum.hpp for the simulated GPU.
#include <cstdint>

#include "tests/guests/host_body.hpp"
#include "tests/guests/sum.hpp"

namespace {

void sum(float* out, const float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

void sum_struct(guests::SumArguments arguments) { sum(arguments.out, arguments.a, arguments.b, arguments.count); }

// Exactly what is read and written: operands may lie in a larger allocation with others.
void touch(simgpu_footprint* footprint, const float* out, const float* a, const float* b, std::size_t count) {
  const std::size_t bytes = count * sizeof(float);
  simgpu_touch(footprint, reinterpret_cast<std::uintptr_t>(a), bytes, SIMGPU_READ);
  simgpu_touch(footprint, reinterpret_cast<std::uintptr_t>(b), bytes, SIMGPU_READ);
  simgpu_touch(footprint, reinterpret_cast<std::uintptr_t>(out), bytes, SIMGPU_WRITE);
}

void sum_touches(const simgpu_launch* launch, simgpu_footprint* footprint) {
  touch(footprint, guests::parameter<const float*>(launch, 0), guests::parameter<const float*>(launch, 1),
        guests::parameter<const float*>(launch, 2), guests::parameter<std::size_t>(launch, 3));
}

void sum_struct_touches(const simgpu_launch* launch, simgpu_footprint* footprint) {
  const auto& arguments = *static_cast<const guests::SumArguments*>(launch->parameters[0]);
  touch(footprint, arguments.out, arguments.a, arguments.b, arguments.count);
}

struct Doubling {
  float* out;
  const float* in;
  std::size_t count;

  explicit Doubling(const simgpu_launch* launch) {
    const auto* arguments = static_cast<const guests::TensorMapArguments*>(launch->parameters[0]);
    out = static_cast<float*>(simgpu_tensor_map_address(arguments->out));
    in = static_cast<const float*>(simgpu_tensor_map_address(arguments->in));
    count = arguments->count;
  }
};

void double_map(const simgpu_launch* launch) {
  const Doubling doubling(launch);
  for (std::size_t i = 0; i < doubling.count; ++i) doubling.out[i] = 2 * doubling.in[i];
}

void double_map_touches(const simgpu_launch* launch, simgpu_footprint* footprint) {
  const Doubling doubling(launch);
  const std::size_t bytes = doubling.count * sizeof(float);
  simgpu_touch(footprint, reinterpret_cast<std::uintptr_t>(doubling.in), bytes, SIMGPU_READ);
  simgpu_touch(footprint, reinterpret_cast<std::uintptr_t>(doubling.out), bytes, SIMGPU_WRITE);
}

}  // namespace

extern "C" void simgpu_kernels() {
  simgpu_register("guest_sum", guests::body<sum>);
  simgpu_register("guest_sum_struct", guests::body<sum_struct>);
  simgpu_register_footprint("guest_sum", sum_touches);
  simgpu_register_footprint("guest_sum_struct", sum_struct_touches);
  simgpu_register("guest_double_map", double_map);
  simgpu_register_footprint("guest_double_map", double_map_touches);
}
