// Managed memory that the guest allocates for itself, as bitsandbytes' paged optimizers do. It counts against the
// limits and is otherwise left alone: the guest writes it from the CPU and places it itself. Its prefetches are passed
// on as far as the budget goes; more would push out what the policy keeps on the device.
//
// The same calls about memory in the place of device memory are answered as the driver answers them for device memory.
#include <algorithm>
#include <span>

#include "interpose/handlers.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/shim.hpp"

namespace hmshim::interpose {

namespace {

bool names_ours(CUdeviceptr address) noexcept { return Shim::get().is_ours(address); }

bool any_names_ours(const CUdeviceptr* addresses, std::size_t count) noexcept {
  return addresses != nullptr && std::any_of(addresses, addresses + count, names_ours);
}

// What managed memory may occupy at the place; without limit on the host.
std::uint64_t budget_bytes_of(CUdevice device) noexcept {
  const Shim& shim = Shim::get();
  const auto ordinal = static_cast<std::size_t>(device);
  return device >= 0 && ordinal < shim.devices.size() ? shim.devices[ordinal].budget_bytes : kNoLimit;
}
std::uint64_t budget_bytes_of(const CUmemLocation& location) noexcept {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? budget_bytes_of(location.id) : kNoLimit;
}

// The part of a prefetch that is passed on.
std::size_t within_budget(std::size_t bytes, std::uint64_t budget_bytes) noexcept {
  if (bytes <= budget_bytes) return bytes;
  Shim::get().bypasses.count(Bypass::program_prefetch, bytes - budget_bytes);
  return budget_bytes;
}

// How many ranges of a batch are passed on: as many as fit, together, the budget of the last one's destination, and at
// least one, since an empty batch is an error. Left to the driver whole when it is not well formed.
std::size_t within_budget(std::span<const std::size_t> sizes, std::span<const CUmemLocation> locations,
                          const std::size_t* first_of_location) noexcept {
  std::uint64_t prefetched_bytes = 0;
  std::size_t location = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    while (location + 1 < locations.size() && first_of_location[location + 1] <= i) ++location;
    const std::uint64_t budget_bytes = budget_bytes_of(locations[location]);
    if (budget_bytes == kNoLimit) continue;
    prefetched_bytes += sizes[i];
    if (i > 0 && prefetched_bytes > budget_bytes) {
      std::uint64_t dropped_bytes = 0;
      for (const std::size_t bytes : sizes.subspan(i)) dropped_bytes += bytes;
      Shim::get().bypasses.count(Bypass::program_prefetch, dropped_bytes);
      return i;
    }
  }
  return sizes.size();
}

}  // namespace

CUresult on_cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  Shim& shim = Shim::get();
  const auto owner = shim.current_owner();
  // Without one, or for nothing, the driver finds the words.
  if (!owner || address == nullptr || bytes == 0 || !shim.can_manage(owner->device))
    return real().cuMemAllocManaged(address, bytes, flags);
  const auto allocation =
      shim.backing.adopt({.bytes = bytes,
                          .backed_bytes = bytes,
                          .context = owner->context,
                          .device = owner->device,
                          .backing = uvm::Backing::ProgramManaged},
                         [&](CUdeviceptr* made) { return real().cuMemAllocManaged(made, bytes, flags); });
  if (!allocation) return allocation.error().code;
  shim.bypasses.count(Bypass::program_managed, bytes);
  *address = allocation->base;
  return CUDA_SUCCESS;
}

#define HMSHIM_PREFETCH(symbol)                                                                   \
  CUresult on_##symbol(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {     \
    if (names_ours(address)) return CUDA_ERROR_INVALID_VALUE;                                     \
    return real().symbol(address, within_budget(bytes, budget_bytes_of(device)), device, stream); \
  }
HMSHIM_PREFETCH(cuMemPrefetchAsync)
HMSHIM_PREFETCH(cuMemPrefetchAsync_ptsz)

#define HMSHIM_PREFETCH_TO_LOCATION(symbol)                                                                          \
  CUresult on_##symbol(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream) { \
    if (names_ours(address)) return CUDA_ERROR_INVALID_VALUE;                                                        \
    return real().symbol(address, within_budget(bytes, budget_bytes_of(location)), location, flags, stream);         \
  }
HMSHIM_PREFETCH_TO_LOCATION(cuMemPrefetchAsync_v2)
HMSHIM_PREFETCH_TO_LOCATION(cuMemPrefetchAsync_v2_ptsz)

#define HMSHIM_PREFETCH_BATCH(symbol)                                                                                 \
  CUresult on_##symbol(CUdeviceptr* addresses, size_t* sizes, size_t count, CUmemLocation* locations,                 \
                       size_t* first_of_location, size_t location_count, unsigned long long flags, CUstream stream) { \
    if (any_names_ours(addresses, count)) return CUDA_ERROR_INVALID_VALUE;                                            \
    const bool is_well_formed = addresses != nullptr && sizes != nullptr && locations != nullptr &&                   \
                                first_of_location != nullptr && location_count > 0;                                   \
    if (is_well_formed) {                                                                                             \
      count = within_budget({sizes, count}, {locations, location_count}, first_of_location);                          \
      while (location_count > 1 && first_of_location[location_count - 1] >= count) --location_count;                  \
    }                                                                                                                 \
    return real().symbol(addresses, sizes, count, locations, first_of_location, location_count, flags, stream);       \
  }
HMSHIM_PREFETCH_BATCH(cuMemPrefetchBatchAsync)
HMSHIM_PREFETCH_BATCH(cuMemPrefetchBatchAsync_ptsz)

// A discard is never dropped with the prefetch: the guest may rely on the one, not on the other.
#define HMSHIM_DISCARD_AND_PREFETCH_BATCH(symbol)                                                                     \
  CUresult on_##symbol(CUdeviceptr* addresses, size_t* sizes, size_t count, CUmemLocation* locations,                 \
                       size_t* first_of_location, size_t location_count, unsigned long long flags, CUstream stream) { \
    if (any_names_ours(addresses, count)) return CUDA_ERROR_INVALID_VALUE;                                            \
    return real().symbol(addresses, sizes, count, locations, first_of_location, location_count, flags, stream);       \
  }
HMSHIM_DISCARD_AND_PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync)
HMSHIM_DISCARD_AND_PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)

#define HMSHIM_DISCARD_BATCH(symbol)                                                                  \
  CUresult on_##symbol(CUdeviceptr* addresses, size_t* sizes, size_t count, unsigned long long flags, \
                       CUstream stream) {                                                             \
    if (any_names_ours(addresses, count)) return CUDA_ERROR_INVALID_VALUE;                            \
    return real().symbol(addresses, sizes, count, flags, stream);                                     \
  }
HMSHIM_DISCARD_BATCH(cuMemDiscardBatchAsync)
HMSHIM_DISCARD_BATCH(cuMemDiscardBatchAsync_ptsz)

CUresult on_cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  return names_ours(address) ? CUDA_ERROR_INVALID_VALUE : real().cuMemAdvise(address, bytes, advice, device);
}
CUresult on_cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return names_ours(address) ? CUDA_ERROR_INVALID_VALUE : real().cuMemAdvise_v2(address, bytes, advice, location);
}

CUresult on_cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags) {
  return names_ours(address) ? CUDA_ERROR_INVALID_VALUE : real().cuStreamAttachMemAsync(stream, address, bytes, flags);
}
CUresult on_cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags) {
  return names_ours(address) ? CUDA_ERROR_INVALID_VALUE
                             : real().cuStreamAttachMemAsync_ptsz(stream, address, bytes, flags);
}

}  // namespace hmshim::interpose
