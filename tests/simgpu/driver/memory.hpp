// What an address is, and how memory comes and goes.
#pragma once

#include <cstdint>

#include "tests/simgpu/driver/driver.hpp"

namespace hmshim::simgpu {

enum class Place : std::uint8_t {
  Invalid,  // begins in a live device or managed allocation and runs over its end
  Device,
  Managed,
  Pinned,    // cuMemHostAlloc, cuMemHostRegister
  Pageable,  // any other address: the host's
};

[[nodiscard]] Place place_of(std::uint64_t address, std::uint64_t bytes);

// Records what an allocation of the model is to the driver.
void remember_memory(std::uint64_t address, Memory memory);
// Frees whatever begins at `address`, after all work enqueued so far. CUDA_ERROR_INVALID_VALUE when nothing does.
CUresult release_memory(std::uint64_t address);

}  // namespace hmshim::simgpu
