#include "tests/simgpu/driver/options.hpp"

#include <cuda.h>
#include <unistd.h>

#include <charconv>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "tests/simgpu/driver/errors.hpp"
#include "tests/simgpu/driver/lookup.hpp"

namespace hmshim::simgpu {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kMaxDevices = 16;
constexpr const char* kDefaultProfile = "h200-141g-pcie5";

[[noreturn]] void reject(const std::string& variable, const std::string& value, const std::string& expected) {
  throw OptionError(variable + "=" + value + ": expected " + expected);
}

std::optional<std::uint64_t> parse_unsigned(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Unset and empty mean the same.
std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string profile_path(const std::string& name) {
  const fs::path path =
      name.find('/') != std::string::npos ? fs::path(name) : fs::path(SIMGPU_PROFILE_DIR) / (name + ".profile");
  if (fs::exists(path)) return path.string();
  std::string known;
  std::error_code no_folder;
  for (const auto& entry : fs::directory_iterator(SIMGPU_PROFILE_DIR, no_folder)) {
    if (entry.path().extension() == ".profile") known += " " + entry.path().stem().string();
  }
  reject("SIMGPU_PROFILE", name, "a path with a '/' or one of:" + known);
}

}  // namespace

std::uint64_t parse_bytes(const std::string& variable, const std::string& value) {
  struct Unit {
    std::string_view suffix;
    std::uint64_t bytes;
  };
  constexpr Unit kUnits[] = {
      {"KiB", 1ULL << 10}, {"MiB", 1ULL << 20}, {"GiB", 1ULL << 30}, {"TiB", 1ULL << 40}, {"", 1}};
  for (const Unit& unit : kUnits) {
    if (!value.ends_with(unit.suffix)) continue;
    const auto number = parse_unsigned(std::string_view(value).substr(0, value.size() - unit.suffix.size()));
    if (!number || *number == 0 || *number > UINT64_MAX / unit.bytes) break;
    return *number * unit.bytes;
  }
  reject(variable, value, "bytes, such as 64MiB, 8GiB or 4096");
}

std::vector<Failure> parse_failures(const std::string& value) {
  std::vector<Failure> failures;
  for (const std::string& part : split(value, ',')) {
    const auto fields = split(part, ':');
    if (fields.size() != 3)
      reject("SIMGPU_FAIL", value, "symbol:ordinal:error, such as cuMemAlloc_v2:3:CUDA_ERROR_OUT_OF_MEMORY");
    if (fields[0] != "*" && !is_export(fields[0])) {
      reject("SIMGPU_FAIL", value, "'*' or an export of the driver, such as cuMemAlloc_v2, not '" + fields[0] + "'");
    }
    const auto ordinal = parse_unsigned(fields[1]);
    if (!ordinal || *ordinal == 0) reject("SIMGPU_FAIL", value, "an ordinal from 1 on, not '" + fields[1] + "'");
    const auto error = error_code(fields[2]);
    if (!error) reject("SIMGPU_FAIL", value, "a CUresult by name or number other than 0, not '" + fields[2] + "'");
    failures.push_back({fields[0], *ordinal, *error});
  }
  return failures;
}

std::map<int, int> parse_attributes(const std::string& value) {
  std::map<int, int> attributes;
  for (const std::string& part : split(value, ',')) {
    const auto fields = split(part, '=');
    const auto number = fields.size() == 2 ? parse_unsigned(fields[0]) : std::nullopt;
    const auto setting = fields.size() == 2 ? parse_unsigned(fields[1]) : std::nullopt;
    if (!number || !setting || *number >= CU_DEVICE_ATTRIBUTE_MAX || *setting > INT_MAX) {
      reject("SIMGPU_ATTRIBUTES", value, "number=value of CUdevice_attribute, such as 18=1 for an integrated device");
    }
    attributes[static_cast<int>(*number)] = static_cast<int>(*setting);
  }
  return attributes;
}

DriverOptions read_options() {
  DriverOptions options;
  options.profile_path = profile_path(environment("SIMGPU_PROFILE").value_or(kDefaultProfile));
  if (const auto value = environment("SIMGPU_DEVICES")) {
    const auto devices = parse_unsigned(*value);
    if (!devices || *devices > kMaxDevices)
      reject("SIMGPU_DEVICES", *value, "a number from 0 to " + std::to_string(kMaxDevices));
    options.devices = static_cast<int>(*devices);
  }
  if (const auto value = environment("SIMGPU_CAPACITY"))
    options.capacity_bytes = parse_bytes("SIMGPU_CAPACITY", *value);
  if (const auto value = environment("SIMGPU_HOST_RAM"))
    options.host_ram_bytes = parse_bytes("SIMGPU_HOST_RAM", *value);
  if (const auto value = environment("SIMGPU_FAIL")) options.failures = parse_failures(*value);
  if (const auto value = environment("SIMGPU_LOG")) {
    options.log_path = *value;
    if (const auto at = options.log_path.find("%p"); at != std::string::npos) {
      options.log_path.replace(at, 2, std::to_string(getpid()));
    }
  }
  options.name = environment("SIMGPU_NAME");
  if (const auto value = environment("SIMGPU_ATTRIBUTES")) options.attributes = parse_attributes(*value);
  if (const auto value = environment("SIMGPU_DRIVER_VERSION"); value && driver_version() == 0) {
    reject("SIMGPU_DRIVER_VERSION", *value, "a CUDA version from 11030 to " + std::to_string(CUDA_VERSION));
  }
  if (const auto value = environment("SIMGPU_KERNELS")) options.kernel_libraries = split(*value, ':');
  return options;
}

}  // namespace hmshim::simgpu
