// Allocations, frees, and what the guest is told about memory.
#include <algorithm>
#include <optional>

#include "interpose/handlers.hpp"
#include "interpose/in_shim.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/shim.hpp"

namespace hmshim::interpose {

namespace {

// Of a pitch as texture and surface hardware wants its rows (CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT of every device
// there is), and the largest that a 2D copy takes (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
constexpr std::size_t kPitchAlignment = 512;
constexpr std::size_t kLargestPitch = (std::size_t{1} << 31) - 1;

// The device's memory information as the guest is to see it; nothing when the driver's own answer stands.
std::optional<uvm::MemoryInfo> virtual_memory_info(CUdevice device) {
  Shim& shim = Shim::get();
  if (shim.config.meminfo == MemInfo::Device || !shim.can_manage(device)) return std::nullopt;
  // What the pools hold without a tenant is as good as free.
  uvm::MemoryInfo info = shim.budget.memory_info(static_cast<std::uint32_t>(device));
  const uvm::PoolBytes pool = shim.pools.bytes(static_cast<std::uint16_t>(device));
  info.free_bytes = std::min(info.free_bytes + pool.reserved - pool.used, info.total_bytes);
  return info;
}

// The books of an allocation that the driver has already made or taken back: nothing here may fail the guest's call.
void note_allocated(Shim& shim, const uvm::Allocation& allocation) noexcept {
  shim.trace.allocated(allocation.base, allocation.bytes, allocation.extent);
  contain([&] {
    switch (allocation.backing) {
      case uvm::Backing::Managed:
        shim.managed_allocations.add(allocation.backed_bytes);
        shim.engines.allocated(allocation);
        return;
      case uvm::Backing::Device:
        shim.device_allocations.add(allocation.backed_bytes);
        shim.fit_budget(allocation.device);
        return;
      case uvm::Backing::Remote:  // no policy has a say in it
        shim.managed_allocations.add(allocation.backed_bytes);
        shim.bypasses.count(Bypass::remote_access, allocation.bytes);
        return;
      case uvm::Backing::ProgramManaged:
        return;
    }
  });
}

void note_departed(Shim& shim, const uvm::Allocation& allocation) noexcept {
  contain([&] {
    switch (allocation.backing) {
      case uvm::Backing::Managed:
        if (allocation.is_live) shim.managed_allocations.remove(allocation.backed_bytes);
        shim.engines.freed(allocation);
        return;
      case uvm::Backing::Device:
        shim.device_allocations.remove(allocation.backed_bytes);
        shim.fit_budget(allocation.device);
        return;
      case uvm::Backing::Remote:
        shim.managed_allocations.remove(allocation.backed_bytes);
        return;
      case uvm::Backing::ProgramManaged:
        return;
    }
  });
}

// Memory for the guest: managed where that is possible and worth it, else what `pass`, the driver's own call, gives.
template <class Pass>
CUresult allocate(CUdeviceptr* address, std::size_t bytes, Pass&& pass) {
  Shim& shim = Shim::get();
  if (!gate().is_active()) return pass();
  if (shim.captures.are_running()) {
    shim.bypasses.count(Bypass::allocation_in_capture, bytes);
    return pass();
  }
  const uvm::Result<Owner> owner = shim.current_owner();
  if (!owner) return owner.error().code;
  if (!shim.can_manage(owner->device)) {
    shim.bypasses.count(Bypass::unmanaged_device, bytes);
    return pass();
  }
  shim.report_device(owner->device);
  const bool is_excluded = shim.callers.is_excluded(InShim::caller());
  uvm::Backing backing = uvm::Backing::Managed;
  if (is_excluded || bytes < shim.config.device_threshold) {
    backing = uvm::Backing::Device;
  } else if (shim.exceeds_device(owner->device, bytes)) {
    backing = uvm::Backing::Remote;
  } else if (uvm::TensorPool* pool = shim.pools.current()) {
    return shim.pools.allocate(*pool, address, bytes, std::nullopt);
  }
  uvm::Result<uvm::Allocation> allocation = shim.backing.allocate(bytes, owner->device, owner->context, backing);
  if (!allocation && allocation.error().code == CUDA_ERROR_OUT_OF_MEMORY) {
    // The pool may have what it needs no more.
    if (uvm::TensorPool* pool = shim.pools.current(); pool != nullptr && pool->trim(0) == CUDA_SUCCESS)
      allocation = shim.backing.allocate(bytes, owner->device, owner->context, backing);
  }
  if (!allocation) return refused(bytes, allocation.error());
  note_allocated(shim, *allocation);
  if (is_excluded)
    contain([&] {
      shim.bypasses.count(Bypass::excluded_caller, bytes);
      shim.callers.note_excluded(InShim::caller(), bytes);
    });
  *address = allocation->base;
  return CUDA_SUCCESS;
}

// Ends a context by `destroy`; what it owned goes with it.
template <class Destroy>
CUresult end_context(std::uint64_t context, Destroy&& destroy) {
  Shim& shim = Shim::get();
  shim.engines.leave_context(context);
  shim.trace.leave_context();
  const auto departed = shim.backing.destroy_context(context, std::forward<Destroy>(destroy));
  if (!departed) return departed.error().code;
  for (const uvm::Departed& allocation : *departed) {
    shim.trace.freed(allocation->base);
    note_departed(shim, *allocation);
  }
  shim.pools.context_ended(context);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult on_cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  const auto pass = [&] { return real().cuMemAlloc_v2(address, bytes); };
  // Size 0 and a null output are errors in the driver's own words.
  return address == nullptr || bytes == 0 ? pass() : allocate(address, bytes, pass);
}

CUresult on_cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                               unsigned element_bytes) {
  const auto pass = [&] { return real().cuMemAllocPitch_v2(address, pitch, width, height, element_bytes); };
  const bool is_element = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  // What makes no sense, or no size, is an error in the driver's own words.
  if (address == nullptr || pitch == nullptr || width == 0 || height == 0 || !is_element) return pass();
  if (width > kLargestPitch) return pass();
  const std::size_t row_bytes = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(row_bytes, height, &bytes)) return pass();
  std::size_t passed_pitch = 0;
  const CUresult result = allocate(
      address, bytes, [&] { return real().cuMemAllocPitch_v2(address, &passed_pitch, width, height, element_bytes); });
  if (result == CUDA_SUCCESS) *pitch = passed_pitch != 0 ? passed_pitch : row_bytes;
  return result;
}

CUresult on_cuMemFree_v2(CUdeviceptr address) {
  Shim& shim = Shim::get();
  if (uvm::TensorPool* pool = shim.pools.holder(address)) return shim.pools.free(*pool, address, std::nullopt);
  shim.trace.freed(address);
  const uvm::Result<uvm::Departed> departed = shim.backing.free(address);
  if (departed) {
    note_departed(shim, **departed);
    return CUDA_SUCCESS;
  }
  // Memory that never was ours, interior pointers and nonsense: the driver's business.
  return departed.error().reason == uvm::Reason::NotOurs ? real().cuMemFree_v2(address) : departed.error().code;
}

CUresult on_cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  const CUresult result = real().cuMemGetInfo_v2(free_bytes, total_bytes);
  if (result != CUDA_SUCCESS) return result;
  contain([&] {
    CUdevice device = 0;
    if (Shim::get().driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) return;
    if (const auto info = virtual_memory_info(device)) {
      if (free_bytes != nullptr) *free_bytes = info->free_bytes;
      if (total_bytes != nullptr) *total_bytes = info->total_bytes;
    }
  });
  return CUDA_SUCCESS;
}

CUresult on_cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  const CUresult result = real().cuDeviceTotalMem_v2(bytes, device);
  if (result != CUDA_SUCCESS) return result;
  contain([&] {
    if (const auto info = virtual_memory_info(device)) *bytes = info->total_bytes;
  });
  return CUDA_SUCCESS;
}

// Allocations die with their context.

CUresult on_cuCtxDestroy_v2(CUcontext context) {
  return end_context(reinterpret_cast<std::uintptr_t>(context), [&] { return real().cuCtxDestroy_v2(context); });
}

CUresult on_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const CUresult result = real().cuDevicePrimaryCtxRetain(context, device);
  if (result == CUDA_SUCCESS) Shim::get().note_primary_context(device, *context);
  return result;
}

CUresult on_cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return end_context(Shim::get().primary_context(device), [&] { return real().cuDevicePrimaryCtxReset_v2(device); });
}

CUresult on_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Shim::get().trace.leave_context();
  const CUresult result = real().cuDevicePrimaryCtxRelease_v2(device);
  if (result != CUDA_SUCCESS) return result;
  // Only the last release ends the context, and only the driver knows which one that was.
  contain([&] {
    Shim& shim = Shim::get();
    unsigned flags = 0;
    int is_alive = 1;
    if (shim.driver.cuDevicePrimaryCtxGetState(device, &flags, &is_alive) != CUDA_SUCCESS || is_alive != 0) return;
    static_cast<void>(end_context(shim.primary_context(device), [] { return CUDA_SUCCESS; }));
  });
  return CUDA_SUCCESS;
}

}  // namespace hmshim::interpose
