// Virtual memory management: physical device memory by handle, mapped into reserved addresses. The bytes of a mapping
// lie in the host's own memory at that address; what the handle stands for is only its share of the device.
#include <sys/mman.h>

#include <algorithm>
#include <map>

#include "tests/simgpu/driver/capture.hpp"
#include "tests/simgpu/driver/driver.hpp"
#include "tests/simgpu/driver/memory.hpp"

namespace hmshim::simgpu {
namespace {

constexpr std::size_t kGranularityBytes = std::size_t{2} << 20;

struct Physical {
  std::uint64_t address = 0;  // of the model's allocation; nobody but the model knows it
  std::uint64_t bytes = 0;
  int device = 0;
  unsigned references = 1;  // the guest's, and one for each mapping
};

// The API's handle is an integer, the table's a pointer.
struct PhysicalTag;
using PhysicalHandle = PhysicalTag*;
HandleTable<Physical, PhysicalHandle, HandleKind::Physical> g_physical;

PhysicalHandle to_handle(CUmemGenericAllocationHandle handle) { return reinterpret_cast<PhysicalHandle>(handle); }

struct Mapping {
  std::size_t bytes;
  CUmemGenericAllocationHandle handle;
};

// Guarded by Driver::mutex.
std::map<std::uint64_t, std::size_t> g_reservations;
std::map<std::uint64_t, Mapping> g_mappings;

CUresult release(CUmemGenericAllocationHandle handle) {
  Physical* physical = g_physical.find(to_handle(handle));
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (--physical->references > 0) return CUDA_SUCCESS;
  const Status status = driver().model->free_memory(physical->address);
  g_physical.destroy(to_handle(handle));
  return to_result(status);
}

bool is_whole(std::uint64_t value) { return value != 0 && value % kGranularityBytes == 0; }

}  // namespace
}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
  return initialised(Call::cuMemGetAllocationGranularity, [=] {
    if (granularity == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *granularity = kGranularityBytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  return initialised(Call::cuMemCreate, [=]() -> CUresult {
    if (const CUresult result = check_unsafe_call(); result != CUDA_SUCCESS) return result;
    if (out == nullptr || properties == nullptr || !is_whole(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
      return CUDA_ERROR_NOT_SUPPORTED;
    const int device = properties->location.id;
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    Physical physical{.bytes = bytes, .device = device};
    const Status status = driver().model->allocate_device(device, bytes, &physical.address);
    if (status != Status::kOk) return to_result(status);
    *out = reinterpret_cast<CUmemGenericAllocationHandle>(g_physical.create(physical));
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return initialised(Call::cuMemRelease, [=] { return release(handle); });
}

CUresult cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long flags) {
  return initialised(Call::cuMemAddressReserve, [=] {
    if (out == nullptr || !is_whole(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t wanted = std::max(alignment, kGranularityBytes);
    if ((wanted & (wanted - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
    void* memory = mmap(nullptr, bytes + wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto first = reinterpret_cast<std::uint64_t>(memory);
    const std::uint64_t aligned = (first + wanted - 1) / wanted * wanted;
    if (aligned > first) munmap(memory, aligned - first);
    munmap(reinterpret_cast<void*>(aligned + bytes), first + wanted - aligned);
    const std::lock_guard lock(driver().mutex);
    g_reservations.emplace(aligned, bytes);
    *out = aligned;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return initialised(Call::cuMemAddressFree, [=] {
    const std::lock_guard lock(driver().mutex);
    const auto found = g_reservations.find(address);
    if (found == g_reservations.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
    munmap(reinterpret_cast<void*>(address), bytes);
    g_reservations.erase(found);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return initialised(Call::cuMemMap, [=] {
    Physical* physical = g_physical.find(to_handle(handle));
    if (physical == nullptr || !is_whole(bytes) || offset != 0 || bytes != physical->bytes || flags != 0)
      return CUDA_ERROR_INVALID_VALUE;
    {
      const std::lock_guard lock(driver().mutex);
      auto reservation = g_reservations.upper_bound(address);
      if (reservation == g_reservations.begin()) return CUDA_ERROR_INVALID_VALUE;
      --reservation;
      const std::uint64_t end = reservation->first + reservation->second;
      if (address >= end || bytes > end - address || address % kGranularityBytes != 0) return CUDA_ERROR_INVALID_VALUE;
      if (!g_mappings.emplace(address, Mapping{bytes, handle}).second) return CUDA_ERROR_INVALID_VALUE;
      ++physical->references;
    }
    remember_memory(address, {.origin = MemoryOrigin::Mapped, .bytes = bytes, .device = physical->device});
    return CUDA_SUCCESS;
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  return initialised(Call::cuMemSetAccess, [=] {
    if (access == nullptr || count == 0 || !driver().find_memory(address)) return CUDA_ERROR_INVALID_VALUE;
    const int protection = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                           : access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                               : PROT_NONE;
    const bool is_set = mprotect(reinterpret_cast<void*>(address), bytes, protection) == 0;
    return is_set ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return initialised(Call::cuMemUnmap, [=]() -> CUresult {
    CUmemGenericAllocationHandle handle = 0;
    {
      const std::lock_guard lock(driver().mutex);
      const auto found = g_mappings.find(address);
      if (found == g_mappings.end() || found->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
      handle = found->second.handle;
      g_mappings.erase(found);
      driver().memory.erase(address);
      // Fresh pages for the next mapping.
      mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
           -1, 0);
    }
    return release(handle);
  });
}

}  // extern "C"
