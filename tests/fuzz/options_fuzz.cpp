// Any environment: the options are read, or refused with a line each, and no value survives that its grammar forbids.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "interpose/config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  std::vector<std::string> entries(1);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (data[i] == '\n') {
      entries.emplace_back();
    } else if (data[i] != '\0') {
      entries.back() += static_cast<char>(data[i]);
    }
  }
  std::vector<const char*> environment;
  for (const std::string& entry : entries) environment.push_back(entry.c_str());
  environment.push_back(nullptr);
  const auto config = hmshim::interpose::parse(environment.data());
  if (config.device_budget.is_percent && config.device_budget.value > 100) std::abort();
  for (const std::string& line : config.errors) {
    if (line.find('\n') != std::string::npos) std::abort();
  }
  for (const std::string& line : config.warnings) {
    if (line.find('\n') != std::string::npos) std::abort();
  }
  static_cast<void>(hmshim::interpose::expand_path(config.report, 7, hmshim::interpose::rank_of(environment.data())));
  return 0;
}
