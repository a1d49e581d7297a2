// Reads /proc and cgroup files whole.
#pragma once

#include <optional>
#include <string>

namespace hmshim::uvm {

// The text of a file; nothing when it cannot be opened or read. Such files have no size to ask for: read to the end.
[[nodiscard]] std::optional<std::string> read_small_file(const std::string& path);

}  // namespace hmshim::uvm
