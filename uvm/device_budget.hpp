// What the guest may still be promised, and what it is told about memory: one calculation for both, so that what
// cuMemGetInfo calls free can be had (in whole blocks) and anything beyond gets a clean CUDA_ERROR_OUT_OF_MEMORY
// instead of the host's OOM killer.
//
// Host side. The driver keeps the host pages of an address after it has migrated back to the device, until it is freed.
// So once a device is oversubscribed, any of its managed bytes may come to occupy host memory, not just the overflow.
// Hence, for a device with D bytes and H bytes of host memory to be had, the promise is max(D, H) and not D + H; put as
// a sum, total = D + host promise with a host promise of H - D at most, and of HMSHIM_HOST_LIMIT at most. H is re-read
// before every promise that the devices alone cannot keep.
//
// The total is fixed when the object is made. Guests size arenas and batches by it once and compare it with free ever
// after; when other processes take host memory later, free shrinks, total does not.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "uvm/allocation_table.hpp"
#include "uvm/host_memory.hpp"
#include "uvm/mutex.hpp"
#include "uvm/result.hpp"

namespace hmshim::uvm {

inline constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

struct DeviceShare {
  std::uint64_t total_bytes;  // the device's own
  std::optional<std::uint64_t>
      budget_bytes;  // HMSHIM_DEVICE_BUDGET, resolved; none promises the whole device. More than total counts as total
};

struct BudgetLimits {
  std::uint64_t managed_bytes = kUnlimited;  // HMSHIM_MANAGED_LIMIT: of all devices together
  std::uint64_t host_bytes =
      kUnlimited;  // HMSHIM_HOST_LIMIT: of all devices together, beyond what they hold themselves
};

struct MemoryInfo {
  std::uint64_t free_bytes;
  std::uint64_t total_bytes;
};

struct LiveBytes {
  std::uint64_t managed;
  std::uint64_t device_backed;
};

// Devices are ordinals below the number given to the constructor; any other throws std::out_of_range.
class DeviceBudget {
 public:
  DeviceBudget(std::span<const DeviceShare> devices, const BudgetLimits& limits, HostMemory host);

  // Takes `bytes` out of what may be promised, all or nothing. Nothing is returned on success, else the limit that is
  // in the way.
  [[nodiscard]] std::optional<Reason> reserve(std::uint32_t device, std::uint64_t bytes, Backing backing);
  // Gives back what reserve() took.
  void release(std::uint32_t device, std::uint64_t bytes, Backing backing);

  // What cuMemGetInfo and cuDeviceTotalMem answer: free <= total always, and free is what reserve() would grant for
  // managed memory.
  [[nodiscard]] MemoryInfo memory_info(std::uint32_t device) const;
  [[nodiscard]] LiveBytes live_bytes(std::uint32_t device) const;

 private:
  struct Device {
    std::uint64_t device_bytes;     // the device's own
    std::uint64_t promised_bytes;   // of the device itself
    std::uint64_t total_bytes = 0;  // what the guest is told
    std::uint64_t managed_bytes = 0;
    std::uint64_t device_backed_bytes = 0;

    [[nodiscard]] std::uint64_t live_bytes() const noexcept { return managed_bytes + device_backed_bytes; }
    [[nodiscard]] std::uint64_t& live_bytes(Backing backing) noexcept {
      return backing == Backing::Device ? device_backed_bytes : managed_bytes;
    }
  };
  struct Grant {
    std::uint64_t bytes;
    Reason limit;  // what keeps it from being more
  };

  [[nodiscard]] Grant largest_grant(const Device& device, Backing backing, std::uint64_t host_bytes) const
      HMSHIM_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t host_bytes_for_managed(std::uint64_t available_bytes) const HMSHIM_REQUIRES(mutex_);

  const BudgetLimits limits_;
  const HostMemory host_;
  const std::uint64_t available_at_start_bytes_;
  mutable Mutex mutex_{LockRank::DeviceBudget};
  std::vector<Device> devices_ HMSHIM_GUARDED_BY(mutex_);
};

}  // namespace hmshim::uvm
