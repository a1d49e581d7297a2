// Whether managing a device's memory makes sense on this machine, and which optional levers there are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "uvm/driver_api.hpp"

namespace hmshim::uvm {

// What the verdict rests on. Filled by collect_facts(), or by hand in tests.
struct DeviceFacts {
  int device = 0;
  std::string name;        // "" where the driver does not say
  int driver_version = 0;  // as cuDriverGetVersion counts: 1000 * major + 10 * minor
  bool is_wsl = false;
  bool has_managed_memory = false;
  bool has_concurrent_managed_access = false;
  bool uses_host_page_tables = false;
  bool is_integrated = false;
  bool has_prefetch = false;              // of either ABI
  bool has_prefetch_by_location = false;  // cuMemPrefetchAsync_v2, CUDA 12.2
  bool has_param_info = false;            // cuFuncGetParamInfo and cuKernelGetParamInfo, CUDA 12.4
  bool has_discard = false;               // cuMemDiscardBatchAsync, CUDA 13.0
  bool has_advice = false;                // cuMemAdvise of either ABI
};

enum class Verdict : std::uint8_t {
  Manage,
  DriverTooOld,
  NoPrefetch,
  NoManagedMemory,
  HostCoherent,        // the device walks the host's page tables (ATS): the kernel already does what we would
  Integrated,          // device and host memory are one: nothing to migrate, and counting both would promise it twice
  NoConcurrentAccess,  // managed memory would move as a whole at every launch and could not be oversubscribed
};

[[nodiscard]] std::string_view to_string(Verdict verdict) noexcept;

struct Capabilities {
  Verdict verdict;
  std::string sentence;  // for the log, the report and doctor alike
  bool can_decode_parameters;
  bool can_discard;
  bool can_advise;

  [[nodiscard]] bool can_manage() const noexcept { return verdict == Verdict::Manage; }
};

// cuGetProcAddress_v2, by which every CUDA 12 and 13 runtime finds the driver's functions and we stand in between.
inline constexpr int kOldestDriverVersion = 12000;

// Asks the driver about a device ordinal, and `root`/proc/version about WSL. What the driver does not answer counts as
// absent.
[[nodiscard]] DeviceFacts collect_facts(const DriverApi& api, int device, const std::string& root = "/");

[[nodiscard]] Capabilities judge(const DeviceFacts& facts);

}  // namespace hmshim::uvm
