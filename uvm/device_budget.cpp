#include "uvm/device_budget.hpp"

#include <algorithm>
#include <utility>

namespace hmshim::uvm {

namespace {

// Of the host memory available at the start this share is left to the guest's own host allocations and to the system.
constexpr std::uint64_t kHostReserveDivisor = 8;

constexpr std::uint64_t minus(std::uint64_t a, std::uint64_t b) noexcept { return a - std::min(a, b); }
constexpr std::uint64_t plus(std::uint64_t a, std::uint64_t b) noexcept {
  return a > kUnlimited - b ? kUnlimited : a + b;
}

}  // namespace

DeviceBudget::DeviceBudget(std::span<const DeviceShare> devices, const BudgetLimits& limits, HostMemory host)
    : limits_(limits), host_(std::move(host)), available_at_start_bytes_(host_.available_bytes()) {
  const MutexLock lock(mutex_);
  for (const DeviceShare& share : devices) {
    Device device{.device_bytes = share.total_bytes,
                  .promised_bytes = std::min(share.budget_bytes.value_or(kUnlimited), share.total_bytes),
                  .total_bytes = kUnlimited};
    device.total_bytes =
        largest_grant(device, Backing::Managed, host_bytes_for_managed(available_at_start_bytes_)).bytes;
    devices_.push_back(device);
  }
}

// Host memory that managed bytes occupy or may come to occupy. What has gone since the start is put down to them first,
// as far as they can explain it: the driver does not say how many host pages it holds.
std::uint64_t DeviceBudget::host_bytes_for_managed(std::uint64_t available_bytes) const {
  std::uint64_t managed_bytes = 0;
  for (const Device& device : devices_) managed_bytes += device.managed_bytes;
  const std::uint64_t occupied = std::min(managed_bytes, minus(available_at_start_bytes_, available_bytes));
  return plus(occupied, minus(available_bytes, available_at_start_bytes_ / kHostReserveDivisor));
}

DeviceBudget::Grant DeviceBudget::largest_grant(const Device& device, Backing backing, std::uint64_t host_bytes) const {
  std::uint64_t managed_bytes = 0;
  std::uint64_t overflow_bytes = 0;
  std::uint64_t claimed_bytes =
      device.managed_bytes;  // of host memory, by this device once oversubscribed, and by those that are
  for (const Device& each : devices_) {
    managed_bytes += each.managed_bytes;
    const std::uint64_t over = minus(each.live_bytes(), each.promised_bytes);
    overflow_bytes += over;
    if (over > 0 && &each != &device) claimed_bytes += each.managed_bytes;
  }
  const std::uint64_t on_device = minus(device.promised_bytes, device.live_bytes());
  const std::uint64_t by_host_limit = plus(on_device, minus(limits_.host_bytes, overflow_bytes));
  const std::uint64_t by_host_memory = std::max(on_device, minus(host_bytes, claimed_bytes));
  const std::uint64_t by_total = minus(device.total_bytes, device.live_bytes());

  Grant grant{by_host_memory, Reason::HostMemory};
  if (by_host_limit < grant.bytes) grant = {by_host_limit, Reason::HostLimit};
  // The total itself came from these two, so the nearer of them is also the reason when the total is in the way.
  grant.bytes = std::min(grant.bytes, by_total);
  if (backing == Backing::Device && device.device_bytes > 0) {  // 0: the driver would not say
    // It cannot be evicted: a tenth of the device stays for the pages of what is managed, or no launch on that could
    // run.
    const std::uint64_t kept_bytes = std::min(device.managed_bytes, device.device_bytes / 10);
    const std::uint64_t by_device = minus(device.device_bytes, plus(device.device_backed_bytes, kept_bytes));
    if (by_device < grant.bytes) grant = {by_device, Reason::DeviceMemory};
  }
  if (const std::uint64_t by_managed_limit = minus(limits_.managed_bytes, managed_bytes);
      backing != Backing::Device && by_managed_limit <= grant.bytes) {
    grant = {by_managed_limit, Reason::ManagedLimit};
  }
  return grant;
}

std::optional<Reason> DeviceBudget::reserve(std::uint32_t ordinal, std::uint64_t bytes, Backing backing) {
  {
    const MutexLock lock(mutex_);
    Device& device = devices_.at(ordinal);
    if (bytes <=
        largest_grant(device, backing, 0).bytes) {  // the device alone can keep it: the common case reads no file
      device.live_bytes(backing) += bytes;
      return std::nullopt;
    }
  }
  // Read without the lock. Racing reservations are safe: each is decided under the lock, against all that were granted
  // before.
  const std::uint64_t available_bytes = host_.available_bytes();
  const MutexLock lock(mutex_);
  Device& device = devices_.at(ordinal);
  const Grant grant = largest_grant(device, backing, host_bytes_for_managed(available_bytes));
  if (bytes > grant.bytes) return grant.limit;
  device.live_bytes(backing) += bytes;
  return std::nullopt;
}

void DeviceBudget::release(std::uint32_t ordinal, std::uint64_t bytes, Backing backing) {
  const MutexLock lock(mutex_);
  std::uint64_t& live = devices_.at(ordinal).live_bytes(backing);
  live = minus(live, bytes);
}

MemoryInfo DeviceBudget::memory_info(std::uint32_t ordinal) const {
  const std::uint64_t available_bytes = host_.available_bytes();
  const MutexLock lock(mutex_);
  const Device& device = devices_.at(ordinal);
  return {largest_grant(device, Backing::Managed, host_bytes_for_managed(available_bytes)).bytes, device.total_bytes};
}

LiveBytes DeviceBudget::live_bytes(std::uint32_t ordinal) const {
  const MutexLock lock(mutex_);
  const Device& device = devices_.at(ordinal);
  return {device.managed_bytes, device.device_backed_bytes};
}

}  // namespace hmshim::uvm
