// The kernels of sum.hpp for the simulated GPU.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tests/guests/gather.hpp"
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
    guests::TensorMapArguments arguments;  // the parameter's copy is not aligned as the type wants it
    std::memcpy(&arguments, launch->parameters[0], sizeof arguments);
    out = static_cast<float*>(simgpu_tensor_map_address(arguments.out));
    in = static_cast<const float*>(simgpu_tensor_map_address(arguments.in));
    count = arguments.count;
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

void gather(float* out, const float* table, std::size_t rows, unsigned seed) {
  for (unsigned i = 0; i < guests::kGathered; ++i) {
    const float* row = table + guests::row_of(seed, i, rows) * guests::kRowFloats;
    std::copy(row, row + guests::kRowFloats, out + std::size_t{i} * guests::kRowFloats);
  }
}

// Of the table only the rows that are asked for.
void gather_touches(const simgpu_launch* launch, simgpu_footprint* footprint) {
  constexpr std::size_t kRowBytes = guests::kRowFloats * sizeof(float);
  const auto table = guests::parameter<std::uintptr_t>(launch, 1);
  const auto rows = guests::parameter<std::size_t>(launch, 2);
  for (unsigned i = 0; i < guests::kGathered; ++i) {
    const std::size_t row = guests::row_of(guests::parameter<unsigned>(launch, 3), i, rows);
    simgpu_touch(footprint, table + row * kRowBytes, kRowBytes, SIMGPU_READ);
  }
  simgpu_touch(footprint, guests::parameter<std::uintptr_t>(launch, 0), guests::kGathered * kRowBytes, SIMGPU_WRITE);
}

void number_rows(float* table, std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row)
    std::fill_n(table + row * guests::kRowFloats, guests::kRowFloats, static_cast<float>(row));
}

}  // namespace

extern "C" void simgpu_kernels() {
  simgpu_register("guest_gather", guests::body<gather>);
  simgpu_register_footprint("guest_gather", gather_touches);
  simgpu_register("guest_number_rows", guests::body<number_rows>);
  simgpu_register("guest_sum", guests::body<sum>);
  simgpu_register("guest_sum_struct", guests::body<sum_struct>);
  simgpu_register_footprint("guest_sum", sum_touches);
  simgpu_register_footprint("guest_sum_struct", sum_struct_touches);
  simgpu_register("guest_double_map", double_map);
  simgpu_register_footprint("guest_double_map", double_map_touches);
}
