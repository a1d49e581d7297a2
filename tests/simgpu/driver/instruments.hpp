// Failure injection, the log and the figures: what a test sees of the driver from outside.
#pragma once

#include "tests/simgpu/driver/options.hpp"
#include "tests/simgpu/simgpu.h"

namespace hmshim::simgpu {

// Opens the log and arms the failures. Throws OptionError when the log cannot be written.
void start_instruments(const DriverOptions& options);

}  // namespace hmshim::simgpu
