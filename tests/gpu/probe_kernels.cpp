// What the probe's kernels touch and do, for the simulated GPU.
#include <cstdint>

#include "tests/guests/host_body.hpp"

namespace {

using guests::parameter;

std::uint64_t address(const simgpu_launch* launch, std::size_t index) {
  return parameter<std::uint64_t>(launch, index);
}

void empty(const simgpu_launch*, simgpu_footprint* footprint) { simgpu_set_duration_ns(footprint, 0); }

void spin(const simgpu_launch* launch, simgpu_footprint* footprint) {
  simgpu_set_duration_ns(footprint, parameter<std::int64_t>(launch, 0));
}

void write_touches(const simgpu_launch* launch, simgpu_footprint* footprint) {
  simgpu_touch(footprint, address(launch, 0), parameter<std::size_t>(launch, 1) * sizeof(float), SIMGPU_WRITE);
}

void write(float* data, std::size_t count, float value) {
  for (std::size_t i = 0; i < count; ++i) data[i] = value;
}

void read_touches(const simgpu_launch* launch, simgpu_footprint* footprint) {
  simgpu_touch(footprint, address(launch, 0), parameter<std::size_t>(launch, 1) * sizeof(float), SIMGPU_READ);
}

void triad_touches(const simgpu_launch* launch, simgpu_footprint* footprint) {
  const std::size_t bytes = parameter<std::size_t>(launch, 3) * sizeof(float);
  if (bytes == 0) return empty(launch, footprint);
  simgpu_touch(footprint, address(launch, 1), bytes, SIMGPU_READ);
  simgpu_touch(footprint, address(launch, 2), bytes, SIMGPU_READ);
  simgpu_touch(footprint, address(launch, 0), bytes, SIMGPU_WRITE);
}

void gather_touches(const simgpu_launch* launch, simgpu_footprint* footprint) {
  const std::size_t bytes = parameter<std::size_t>(launch, 2) * sizeof(float);
  simgpu_touch(footprint, address(launch, 1), bytes, SIMGPU_READ);
  simgpu_touch(footprint, address(launch, 0), bytes, SIMGPU_WRITE);
}

void gemm_touches(const simgpu_launch* launch, simgpu_footprint* footprint) {
  const auto n = static_cast<std::size_t>(parameter<int>(launch, 3));
  const std::size_t bytes = n * n * sizeof(float);
  simgpu_touch(footprint, address(launch, 1), bytes, SIMGPU_READ);
  simgpu_touch(footprint, address(launch, 2), bytes, SIMGPU_READ);
  simgpu_touch(footprint, address(launch, 0), bytes, SIMGPU_WRITE);
}

void touch_touches(const simgpu_launch* launch, simgpu_footprint* footprint) {
  const auto stride = parameter<std::size_t>(launch, 1);
  const auto count = parameter<std::size_t>(launch, 2);
  const int kind = parameter<int>(launch, 3) != 0 ? SIMGPU_WRITE : SIMGPU_READ;
  const auto mix = parameter<std::size_t>(launch, 4);
  for (std::size_t i = 0; i < count; ++i)
    simgpu_touch(footprint, address(launch, 0) + i * mix % count * stride, 4, kind);
}

}  // namespace

extern "C" void simgpu_kernels() {
  simgpu_register_footprint("probe_empty", empty);
  simgpu_register_footprint("probe_spin", spin);
  simgpu_register("probe_write", guests::body<write>);
  simgpu_register_footprint("probe_write", write_touches);
  simgpu_register_footprint("probe_read", read_touches);
  simgpu_register_footprint("probe_triad", triad_touches);
  simgpu_register_footprint("probe_gather", gather_touches);
  simgpu_register_footprint("probe_gemm", gemm_touches);
  simgpu_register_footprint("probe_touch", touch_touches);
}
