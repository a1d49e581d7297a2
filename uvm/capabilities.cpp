#include "uvm/capabilities.hpp"

#include <fmt/format.h>

#include <cctype>

#include "uvm/small_file.hpp"

namespace hmshim::uvm {

namespace {

Verdict verdict_of(const DeviceFacts& facts) noexcept {
  if (facts.driver_version < kOldestDriverVersion) return Verdict::DriverTooOld;
  if (!facts.has_prefetch) return Verdict::NoPrefetch;
  if (!facts.has_managed_memory) return Verdict::NoManagedMemory;
  if (facts.is_integrated) return Verdict::Integrated;
  if (facts.uses_host_page_tables) return Verdict::HostCoherent;
  if (!facts.has_concurrent_managed_access) return Verdict::NoConcurrentAccess;
  return Verdict::Manage;
}

// vGPU profiles end in their frame buffer size and a letter for the product, as in "NVIDIA A100-40C"; older ones begin
// with "GRID".
bool is_vgpu_name(std::string_view name) noexcept {
  if (name.find("GRID ") != name.npos) return true;
  const std::size_t dash = name.rfind('-');
  if (dash == name.npos || name.size() - dash < 3) return false;
  for (const char digit : name.substr(dash + 1, name.size() - dash - 2)) {
    if (std::isdigit(static_cast<unsigned char>(digit)) == 0) return false;
  }
  return std::string_view("ABCQ").find(name.back()) != std::string_view::npos;
}

std::string_view why_no_concurrent_access(const DeviceFacts& facts) noexcept {
  if (facts.is_wsl) return "as always under WSL";
  if (facts.name.find(" MIG ") != std::string::npos) return "as on some MIG instances";
  if (is_vgpu_name(facts.name)) return "as on a vGPU without unified memory enabled in its plugin";
  return "so managed memory could not exceed the device";
}

std::string reason_of(const DeviceFacts& facts, Verdict verdict) {
  switch (verdict) {
    case Verdict::Manage:
      return fmt::format("its memory is managed{}{}",
                         facts.has_param_info ? "" : "; launch arguments cannot be read (CUDA 12.4 needed)",
                         facts.has_discard ? "" : "; no discard (CUDA 13.0 needed)");
    case Verdict::DriverTooOld:
      if (facts.driver_version == 0) return "the driver does not say which CUDA it supports";
      return fmt::format("the driver supports CUDA {}.{}, at least {}.{} is needed", facts.driver_version / 1000,
                         facts.driver_version % 1000 / 10, kOldestDriverVersion / 1000,
                         kOldestDriverVersion % 1000 / 10);
    case Verdict::NoPrefetch:
      return "the driver has no cuMemPrefetchAsync";
    case Verdict::NoManagedMemory:
      return "it cannot allocate managed memory (managedMemory is 0)";
    case Verdict::HostCoherent:
      return "it uses the host's page tables, so ordinary memory already migrates";
    case Verdict::Integrated:
      return "it shares its memory with the host, so nothing can be moved out of it";
    case Verdict::NoConcurrentAccess:
      return fmt::format("concurrentManagedAccess is 0, {}", why_no_concurrent_access(facts));
  }
  return {};
}

bool attribute(const DriverApi& api, CUdevice_attribute which, int device) noexcept {
  int value = 0;
  return api.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS && value != 0;
}

}  // namespace

std::string_view to_string(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::Manage:
      return "manage";
    case Verdict::DriverTooOld:
      return "driver_too_old";
    case Verdict::NoPrefetch:
      return "no_prefetch";
    case Verdict::NoManagedMemory:
      return "no_managed_memory";
    case Verdict::HostCoherent:
      return "host_coherent";
    case Verdict::Integrated:
      return "integrated";
    case Verdict::NoConcurrentAccess:
      return "no_concurrent_access";
  }
  return "unknown";
}

DeviceFacts collect_facts(const DriverApi& api, int device, const std::string& root) {
  DeviceFacts facts;
  facts.device = device;
  if (char name[256] = {};
      api.cuDeviceGetName != nullptr && api.cuDeviceGetName(name, sizeof name, device) == CUDA_SUCCESS) {
    facts.name = name;
  }
  if (api.cuDriverGetVersion(&facts.driver_version) != CUDA_SUCCESS) facts.driver_version = 0;
  // Microsoft's kernels say so: "... 5.15.90.1-microsoft-standard-WSL2 ...", "... 4.4.0-19041-Microsoft ...".
  const std::string proc_version = read_small_file(root + "/proc/version").value_or("");
  facts.is_wsl = proc_version.find("icrosoft") != std::string::npos;
  facts.has_managed_memory = attribute(api, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, device);
  facts.has_concurrent_managed_access = attribute(api, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device);
  facts.uses_host_page_tables =
      attribute(api, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, device);
  facts.is_integrated = attribute(api, CU_DEVICE_ATTRIBUTE_INTEGRATED, device);
  facts.has_prefetch_by_location = api.cuMemPrefetchAsync_v2 != nullptr;
  facts.has_prefetch = facts.has_prefetch_by_location || api.cuMemPrefetchAsync_v8000 != nullptr;
  facts.has_param_info = api.cuFuncGetParamInfo != nullptr && api.cuKernelGetParamInfo != nullptr;
  facts.has_discard = api.cuMemDiscardBatchAsync != nullptr;
  facts.has_advice = api.cuMemAdvise_v2 != nullptr || api.cuMemAdvise_v8000 != nullptr;
  return facts;
}

Capabilities judge(const DeviceFacts& facts) {
  const Verdict verdict = verdict_of(facts);
  const std::string who = facts.name.empty() ? fmt::format("device {}", facts.device)
                                             : fmt::format("device {} ({})", facts.device, facts.name);
  return {.verdict = verdict,
          .sentence = fmt::format("{}: {}{}.", who,
                                  verdict == Verdict::Manage ? "" : "not managed: ", reason_of(facts, verdict)),
          .can_decode_parameters = facts.has_param_info,
          .can_discard = facts.has_discard,
          .can_advise = facts.has_advice};
}

}  // namespace hmshim::uvm
