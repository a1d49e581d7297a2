// Stream-ordered allocation and the driver's memory pools: served by the pools of tensors (tensor_pools.hpp).
#include <optional>

#include "interpose/handlers.hpp"
#include "interpose/in_shim.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/shim.hpp"

namespace hmshim::interpose {

namespace {

// `from`: the pool that the guest names; null: the current one of the device.
template <class Real>
CUresult allocate(CUdeviceptr* address, size_t bytes, CUmemoryPool from, CUstream stream, Real real_call) {
  Shim& shim = Shim::get();
  // Size 0 and a null output are errors in the driver's own words.
  if (address == nullptr || bytes == 0 || !gate().is_active()) return real_call();
  uvm::TensorPool* pool = shim.pools.current();
  const auto pass = [&](Bypass reason) {
    shim.bypasses.count(reason, bytes);
    return real_call();
  };
  if (pool == nullptr) return pass(Bypass::unmanaged_device);
  if (shim.callers.is_excluded(InShim::caller())) {
    shim.callers.note_excluded(InShim::caller(), bytes);
    return pass(Bypass::excluded_caller);
  }
  const std::uint16_t device = pool->config().device;
  if (from != nullptr ? shim.pools.is_foreign(from) : shim.pools.is_current_foreign(device))
    return pass(Bypass::foreign_pool);
  // A slab is made by a call that no capture of the process would survive; a stream under capture gets nodes of its
  // graph.
  if (shim.captures.are_running()) return pass(Bypass::allocation_in_capture);
  shim.report_device(device);
  if (shim.exceeds_device(device, bytes)) return on_cuMemAlloc_v2(address, bytes);
  return shim.pools.allocate(*pool, address, bytes, stream);
}

template <class Real>
CUresult free_in(CUstream stream, CUdeviceptr address, Real real_call) {
  Shim& shim = Shim::get();
  uvm::TensorPool* pool = shim.pools.holder(address);
  if (pool == nullptr) {
    // Memory of cuMemAlloc may be freed in a stream as well; what is in the table must leave it.
    const std::optional<uvm::Allocation> other = shim.allocations.lookup(address);
    return other && other->base == address ? on_cuMemFree_v2(address) : real_call();
  }
  // During a capture a free becomes a node, and takes only what a node has allocated (CUDA driver API, cuMemFreeAsync).
  if (shim.captures.holds(stream, shim.driver)) return CUDA_ERROR_INVALID_VALUE;
  return shim.pools.free(*pool, address, stream);
}

}  // namespace

CUresult on_cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate(address, bytes, nullptr, stream_of_legacy(stream),
                  [=] { return real().cuMemAllocAsync(address, bytes, stream); });
}
CUresult on_cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate(address, bytes, nullptr, stream_of_ptsz(stream),
                  [=] { return real().cuMemAllocAsync_ptsz(address, bytes, stream); });
}
CUresult on_cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate(address, bytes, pool, stream_of_legacy(stream),
                  [=] { return real().cuMemAllocFromPoolAsync(address, bytes, pool, stream); });
}
CUresult on_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate(address, bytes, pool, stream_of_ptsz(stream),
                  [=] { return real().cuMemAllocFromPoolAsync_ptsz(address, bytes, pool, stream); });
}
CUresult on_cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_in(stream_of_legacy(stream), address, [=] { return real().cuMemFreeAsync(address, stream); });
}
CUresult on_cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_in(stream_of_ptsz(stream), address, [=] { return real().cuMemFreeAsync_ptsz(address, stream); });
}

CUresult on_cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const CUresult result = real().cuMemPoolCreate(pool, properties);
  if (result == CUDA_SUCCESS) contain([&] { Shim::get().pools.created(*pool, *properties); });
  return result;
}

CUresult on_cuMemPoolDestroy(CUmemoryPool pool) {
  const CUresult result = real().cuMemPoolDestroy(pool);
  if (result == CUDA_SUCCESS) contain([&] { Shim::get().pools.destroyed(pool); });
  return result;
}

CUresult on_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  const CUresult result = real().cuDeviceSetMemPool(device, pool);
  if (result == CUDA_SUCCESS) contain([&] { Shim::get().pools.set_current(static_cast<std::uint16_t>(device), pool); });
  return result;
}

CUresult on_cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  const CUresult result = real().cuMemSetMemPool(location, type, pool);
  const bool is_device = location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (result == CUDA_SUCCESS && is_device && type == CU_MEM_ALLOCATION_TYPE_PINNED)
    contain([&] { Shim::get().pools.set_current(static_cast<std::uint16_t>(location->id), pool); });
  return result;
}

CUresult on_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
  const CUresult result = real().cuMemPoolTrimTo(pool, keep_bytes);
  if (result == CUDA_SUCCESS) {
    contain([&] {
      if (const auto device = Shim::get().pools.device_of(pool)) Shim::get().pools.trim(*device, keep_bytes);
    });
  }
  return result;
}

// What the driver's pool holds beside ours (memory of graphs) is counted with it.
CUresult on_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
  const CUresult result = real().cuMemPoolGetAttribute(pool, which, value);
  if (result != CUDA_SUCCESS || which < CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT || which > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
    return result;
  contain([&] {
    const auto device = Shim::get().pools.device_of(pool);
    if (!device) return;
    const uvm::PoolBytes bytes = Shim::get().pools.bytes(*device);
    *static_cast<cuuint64_t*>(value) += which == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? bytes.reserved
                                        : which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH  ? bytes.reserved_high
                                        : which == CU_MEMPOOL_ATTR_USED_MEM_CURRENT   ? bytes.used
                                                                                      : bytes.used_high;
  });
  return result;
}

CUresult on_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
  const CUresult result = real().cuMemPoolSetAttribute(pool, which, value);
  const bool resets = which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || which == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
  if (result == CUDA_SUCCESS && resets) {
    contain([&] {
      if (const auto device = Shim::get().pools.device_of(pool)) Shim::get().pools.reset_high(*device);
    });
  }
  return result;
}

// Before: afterwards nothing can be recorded on it any more, and another may get its handle.
CUresult on_cuStreamDestroy_v2(CUstream stream) {
  contain([&] { Shim::get().pools.stream_ends(stream); });
  return real().cuStreamDestroy_v2(stream);
}

}  // namespace hmshim::interpose
