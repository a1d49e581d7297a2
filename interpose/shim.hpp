// The composition root: everything the handlers work with, made once when cuInit has succeeded and never destroyed (the
// guest's own static destructors may still call CUDA).
#pragma once

#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "interpose/bypass.hpp"
#include "interpose/callers.hpp"
#include "interpose/captures.hpp"
#include "interpose/config.hpp"
#include "interpose/engine_host.hpp"
#include "interpose/gate.hpp"
#include "interpose/graphs.hpp"
#include "interpose/kernel_args.hpp"
#include "interpose/report.hpp"
#include "interpose/tensor_maps.hpp"
#include "interpose/tensor_pools.hpp"
#include "interpose/trace_recorder.hpp"
#include "uvm/allocation_table.hpp"
#include "uvm/backing.hpp"
#include "uvm/capabilities.hpp"
#include "uvm/device_budget.hpp"
#include "uvm/driver_api.hpp"
#include "uvm/migrator.hpp"
#include "uvm/result.hpp"

namespace hmshim::interpose {

// A count with its high-water mark, for the exit record.
class AllocationCounter {
 public:
  void add(std::uint64_t bytes) noexcept;
  void remove(std::uint64_t bytes) noexcept { live_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }
  [[nodiscard]] AllocationTally tally() const noexcept;

 private:
  std::atomic<std::uint64_t> count_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> live_bytes_{0};
  std::atomic<std::uint64_t> peak_bytes_{0};
};

// What start() found out about a device.
struct Device {
  uvm::Capabilities capabilities;
  std::uint64_t total_bytes = 0;   // the device's own
  std::uint64_t budget_bytes = 0;  // what managed extents may occupy
  std::atomic<std::uint64_t> primary_context{0};
  std::atomic<bool> is_reported{false};             // its start record has been written
  std::atomic<std::uint64_t> unevictable_bytes{0};  // of device memory that is not managed, as the engine knows it
};

// Where an allocation made now would belong.
struct Owner {
  std::uint16_t device;
  std::uint64_t context;
};

class Shim {
 public:
  // After cuInit has succeeded: reads the options, judges the devices, and opens the gate or says in one line why not.
  // Any thread, any number of times; the first call counts.
  static void start() noexcept;
  // Only inside handlers: the gate lets them run once start() has been through.
  [[nodiscard]] static Shim& get() noexcept { return *instance_; }

  Shim(const Shim&) = delete;
  Shim& operator=(const Shim&) = delete;

  const Config config;
  const uvm::DriverApi driver;
  std::vector<Device> devices;  // by ordinal
  uvm::AllocationTable allocations;
  uvm::DeviceBudget budget;
  uvm::BackingStore backing{driver, allocations, budget};
  uvm::Migrator migrator{driver, allocations};
  KernelLayouts layouts;
  TensorMaps tensor_maps;
  Graphs graphs{driver, allocations, layouts, tensor_maps, pools};
  Captures captures;
  Bypasses bypasses;
  Callers callers{config.exclude};
  Report report;
  TraceRecorder trace;
  EngineHost engines;
  TensorPools pools{*this};
  AllocationCounter managed_allocations;
  AllocationCounter device_allocations;

  // Small allocations cannot be evicted: what they take beyond the part of the device set aside for them is not the
  // policy's to use.
  void fit_budget(std::uint16_t ordinal);

  // The guest has waited for the device: what has been put off for then is done.
  void waited() noexcept;

  // Without a context this fails as an allocation itself would, with CUDA_ERROR_INVALID_CONTEXT.
  [[nodiscard]] uvm::Result<Owner> current_owner() const noexcept;
  // No part of the device could hold it whole: it is served from the host.
  [[nodiscard]] bool exceeds_device(std::uint16_t ordinal, std::uint64_t bytes) const noexcept;
  [[nodiscard]] bool can_manage(CUdevice device) const noexcept;
  // The live allocation that holds `address` and is not what the driver takes it for: managed in the place of device
  // memory, or a part of a larger allocation.
  [[nodiscard]] std::optional<uvm::Allocation> find_ours(CUdeviceptr address) const noexcept;
  // Whether the guest has freed what was there and a pool keeps it.
  [[nodiscard]] bool is_ours(CUdeviceptr address) const noexcept { return find_ours(address).has_value(); }
  [[nodiscard]] bool is_freed(CUdeviceptr address) const noexcept;

  // Writes the start record of a device that the guest begins to use.
  void report_device(std::uint16_t ordinal) noexcept;
  // The handle of a device's primary context as the guest was given it; 0 before. Devices that do not exist are
  // ignored.
  void note_primary_context(CUdevice device, CUcontext context) noexcept;
  [[nodiscard]] std::uint64_t primary_context(CUdevice device) const noexcept;

 private:
  Shim(Config config_read, const uvm::DriverApi& driver_resolved, std::vector<Device> devices_judged);
  static void start_once();
  void finish() noexcept;
  void read_profile();
  void write_profile();

  const pid_t pid_ = getpid();
  const std::string profile_path_;
  bool may_write_profile_ = false;

  static inline Shim* instance_ = nullptr;
};

// Runs what must not disturb the guest: an exception turns the policy off instead of reaching anyone.
template <class Work>
void contain(Work&& work) noexcept {
  try {
    work();
  } catch (...) {
    gate().pass_through(Reason::internal_error);
  }
}

// The null stream means the legacy default stream in plain entry points and the calling thread's own in *_ptsz ones; to
// our own calls it is said out loud (CUDA driver API, stream synchronization behavior).
[[nodiscard]] inline CUstream stream_of_legacy(CUstream stream) noexcept {
  return stream == nullptr ? CU_STREAM_LEGACY : stream;
}
[[nodiscard]] inline CUstream stream_of_ptsz(CUstream stream) noexcept {
  return stream == nullptr ? CU_STREAM_PER_THREAD : stream;
}

}  // namespace hmshim::interpose
