// The program that plays a trace: an ordinary user of the CUDA driver API, which knows nothing of the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/replay_options.hpp"
#include "bench/trace_reader.hpp"
#include "tests/simgpu/simgpu.h"

namespace hmshim::bench {

// The simulated GPU's figures before the first iteration and after each.
// Every iteration ends with a synchronisation, as one does whose loss is read.
// Throws std::runtime_error naming the call that failed and what it was for.
[[nodiscard]] std::vector<simgpu_stats> play(const Trace& trace, std::uint32_t iterations, Allocator allocator,
                                             const std::string& kernel_image_path);

}  // namespace hmshim::bench
