// The cases of tests/unit/interpose/size_cases.txt, to which both readers of the size grammar are held.
#pragma once

#include <string>
#include <vector>

namespace hmshim::support {

struct SizeCase {
  std::string text;
  std::string meaning;  // bytes, a percentage, "none" or "junk"
};

// Throws std::runtime_error when the file cannot be read.
[[nodiscard]] std::vector<SizeCase> size_cases();

}  // namespace hmshim::support
