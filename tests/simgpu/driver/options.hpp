// What the environment says: SIMGPU_*. Read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace hmshim::simgpu {

// Names the variable, its value and what would be right.
class OptionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Fail the `ordinal`-th call (from 1) of `symbol` with `error`, without doing it. Symbol "*": the ordinal-th call of
// any.
struct Failure {
  std::string symbol;
  std::uint64_t ordinal = 0;
  int error = 0;
};

struct DriverOptions {
  std::string profile_path;
  int devices = 1;
  std::optional<std::uint64_t> capacity_bytes;
  std::optional<std::uint64_t> host_ram_bytes;
  std::vector<Failure> failures;
  std::string log_path;  // %p already replaced
  std::vector<std::string> kernel_libraries;
  std::optional<std::string> name;  // instead of the profile's
  std::map<int, int> attributes;    // instead of the model's, by CUdevice_attribute
};

// Throws OptionError.
[[nodiscard]] DriverOptions read_options();

// "64MiB", "8GiB", "4096": bytes. Throws OptionError naming `variable`.
[[nodiscard]] std::uint64_t parse_bytes(const std::string& variable, const std::string& value);
// "18=1,89=0": values by number of attribute.
[[nodiscard]] std::map<int, int> parse_attributes(const std::string& value);
// "cuMemAlloc_v2:3:CUDA_ERROR_OUT_OF_MEMORY", "*:17:2"; several separated by commas.
[[nodiscard]] std::vector<Failure> parse_failures(const std::string& value);

}  // namespace hmshim::simgpu
