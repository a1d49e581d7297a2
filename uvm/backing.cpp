#include "uvm/backing.hpp"

#include "policy/vocabulary.hpp"

namespace hmshim::uvm {

namespace {

using policy::kBlockBytes;

// A size too large to round stays as it is; no budget grants it.
std::uint64_t whole_blocks(std::uint64_t bytes) noexcept {
  return bytes > kUnlimited - kBlockBytes ? bytes : policy::round_up_to_block(bytes);
}

CUresult advise(const DriverApi& api, std::uint64_t base, std::uint64_t bytes, CUmem_advise advice,
                CUdevice target) noexcept {
  if (api.cuMemAdvise_v2 != nullptr) return api.cuMemAdvise_v2(base, bytes, advice, location_of(target));
  return api.cuMemAdvise_v8000 != nullptr ? api.cuMemAdvise_v8000(base, bytes, advice, target)
                                          : CUDA_ERROR_NOT_SUPPORTED;
}

// With the host as preferred location a fault of the device maps the host's page instead of moving it, and accessed-by
// maps pages as they come, without a fault each (CUDA driver API, cuMemAdvise).
CUresult keep_on_host(const DriverApi& api, std::uint64_t base, std::uint64_t bytes, CUdevice device) noexcept {
  const CUresult code = advise(api, base, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU);
  return code != CUDA_SUCCESS ? code : advise(api, base, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
}

}  // namespace

Result<Memory> BackingStore::take(std::uint64_t bytes, std::uint16_t device, Backing backing) {
  const bool is_managed = backing != Backing::Device;
  const std::uint64_t wanted_bytes = is_managed ? whole_blocks(bytes) : bytes;
  Result<Memory> memory = reserve_and_back(wanted_bytes, device, backing);
  if (memory && is_managed && memory->base % kBlockBytes != 0) {
    // No driver has been seen to do this for whole blocks, but none promises not to: take one block more and begin
    // inside it.
    undo(*memory, device, backing);
    memory = reserve_and_back(wanted_bytes + kBlockBytes, device, backing);
    if (memory) memory->base = policy::round_up_to_block(memory->base);
  }
  return memory;
}

CUresult BackingStore::give_back(const Memory& memory, std::uint16_t device, Backing backing) {
  const CUresult code = api_.cuMemFree_v2(memory.driver_base);
  if (code == CUDA_SUCCESS) budget_.release(device, memory.backed_bytes, backing);
  return code;
}

Result<Allocation> BackingStore::allocate(std::uint64_t bytes, std::uint16_t device, std::uint64_t context,
                                          Backing backing) {
  const Result<Memory> memory = take(bytes, device, backing);
  if (!memory) return memory.error();
  return enter({.base = memory->base,
                .bytes = bytes,
                .driver_base = memory->driver_base,
                .backed_bytes = memory->backed_bytes,
                .context = context,
                .device = device,
                .backing = backing});
}

Result<Memory> BackingStore::reserve_and_back(std::uint64_t bytes, std::uint16_t device, Backing backing) {
  if (const std::optional<Reason> limit = budget_.reserve(device, bytes, backing))
    return Error{CUDA_ERROR_OUT_OF_MEMORY, *limit};
  CUdeviceptr address = 0;
  CUresult code = backing == Backing::Device ? api_.cuMemAlloc_v2(&address, bytes)
                                             : api_.cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL);
  if (code != CUDA_SUCCESS) {
    budget_.release(device, bytes, backing);
    return Error{code, Reason::DriverRefused};
  }
  const Memory memory{.base = address, .driver_base = address, .backed_bytes = bytes};
  if (backing == Backing::Remote) code = keep_on_host(api_, address, bytes, static_cast<CUdevice>(device));
  if (code != CUDA_SUCCESS) {
    undo(memory, device, backing);
    return Error{code, Reason::DriverRefused};
  }
  return memory;
}

// The guest is about to be told of the failure that led here; one of the free itself could not be told and leaves
// nothing to do.
void BackingStore::undo(const Memory& memory, std::uint16_t device, Backing backing) {
  static_cast<void>(api_.cuMemFree_v2(memory.driver_base));
  budget_.release(device, memory.backed_bytes, backing);
}

Result<Allocation> BackingStore::enter(Allocation allocation) {
  if (table_.insert(allocation)) return allocation;
  undo({.base = allocation.base, .driver_base = allocation.driver_base, .backed_bytes = allocation.backed_bytes},
       allocation.device, allocation.backing);
  return Error{CUDA_ERROR_OUT_OF_MEMORY, Reason::TableRefused};
}

Result<Departed> BackingStore::free(std::uint64_t base) {
  std::optional<Allocation> leaving = table_.remove(base);
  if (!leaving) return Error{CUDA_ERROR_INVALID_VALUE, Reason::NotOurs};
  if (const CUresult code = api_.cuMemFree_v2(leaving->driver_base); code != CUDA_SUCCESS) {
    put_back(*leaving);
    return Error{code, Reason::DriverRefused};
  }
  budget_.release(leaving->device, leaving->backed_bytes, leaving->backing);
  return Departed(table_, *leaving);
}

// The address cannot have been given to anybody else meanwhile. Where the table has no memory to take the entry back,
// the allocation is as one that the library never saw, and stays counted against the budget since it exists.
void BackingStore::put_back(Allocation& allocation) {
  if (!table_.insert(allocation)) table_.release_extent(allocation.extent);
}

std::vector<Departed> BackingStore::depart(const std::vector<Allocation>& allocations) {
  std::vector<Departed> departed;
  departed.reserve(allocations.size());
  for (const Allocation& allocation : allocations) {
    if (allocation.driver_base != 0) budget_.release(allocation.device, allocation.backed_bytes, allocation.backing);
    departed.emplace_back(table_, allocation);
  }
  return departed;
}

}  // namespace hmshim::uvm
