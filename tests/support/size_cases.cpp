#include "tests/support/size_cases.hpp"

#include <sstream>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {

std::vector<SizeCase> size_cases() {
  std::vector<SizeCase> cases;
  std::istringstream file(read_file(source_dir() / "tests/unit/interpose/size_cases.txt"));
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t close = line.rfind('"');
    cases.push_back({line.substr(1, close - 1), line.substr(line.find_first_not_of(' ', close + 1))});
  }
  return cases;
}

}  // namespace hmshim::support
