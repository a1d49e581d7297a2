// Reads a training trace (format: bench/README.md) into the pattern that the library would learn from it.
#pragma once

#include <string>

#include "policy/access_pattern.hpp"

namespace hmshim::bench {

// `path` is JSON lines, gzip'd or not. `field` is the key of the launches' durations, in microseconds.
// Throws std::runtime_error naming the file, the line and what is wrong there.
[[nodiscard]] policy::AccessPattern read_trace(const std::string& path, const std::string& field);

}  // namespace hmshim::bench
