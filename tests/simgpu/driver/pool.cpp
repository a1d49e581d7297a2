// Stream-ordered allocation. A pool keeps accounts only: what it frees goes back to the device at once, so a release
// threshold changes nothing but what cuMemPoolGetAttribute answers.
#include <algorithm>

#include "tests/simgpu/driver/capture.hpp"
#include "tests/simgpu/driver/flavours.hpp"
#include "tests/simgpu/driver/memory.hpp"

namespace hmshim::simgpu {
namespace {

// A null pool: the current one of the stream's device.
CUresult allocate(Call call, CUdeviceptr* out, std::size_t bytes, CUmemoryPool pool_handle, bool is_pool_given,
                  CUstream stream_handle) {
  return in_context(call, [=](const Context&) -> CUresult {
    Stream* stream = find_stream(stream_handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture.load() != nullptr) return refuse_capture(*stream);
    Driver& state = driver();
    CUmemoryPool owner = pool_handle;
    if (!is_pool_given) {
      const std::lock_guard lock(state.mutex);
      owner = state.current_pools[static_cast<std::size_t>(stream->device)];
    }
    Pool* pool = state.pools.find(owner);
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t address = 0;
    const Status status = pool->type == CU_MEM_ALLOCATION_TYPE_MANAGED
                              ? state.model->allocate_managed(pool->device, bytes, &address)
                              : state.model->allocate_device(pool->device, bytes, &address);
    if (status != Status::kOk) return to_result(status);
    remember_memory(address, {.origin = MemoryOrigin::Pool,
                              .bytes = bytes,
                              .context = stream->context,
                              .device = pool->device,
                              .pool = owner});
    const std::lock_guard lock(state.mutex);
    pool->used_bytes += bytes;
    pool->used_high_bytes = std::max(pool->used_high_bytes, pool->used_bytes);
    *out = address;
    return CUDA_SUCCESS;
  });
}

CUresult free_later(Call call, CUdeviceptr address, CUstream handle) {
  return in_context(call, [=](const Context&) -> CUresult {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (address == 0) return CUDA_SUCCESS;
    if (stream->capture.load() != nullptr) return refuse_capture(*stream);
    Driver& state = driver();
    {
      const std::lock_guard lock(state.mutex);
      const auto found = state.memory.find(address);
      if (found == state.memory.end() || found->second.origin != MemoryOrigin::Pool) return CUDA_ERROR_INVALID_VALUE;
      if (Pool* pool = state.pools.find(found->second.pool)) pool->used_bytes -= found->second.bytes;
      state.memory.erase(found);
    }
    return to_result(state.model->free_async(stream->id, address));
  });
}

// A call about a pool.
template <class Body>
CUresult on_pool(Call call, CUmemoryPool handle, Body&& body) {
  return initialised(call, [&]() -> CUresult {
    Pool* pool = driver().pools.find(handle);
    return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : body(*pool);
  });
}

template <class Body>
CUresult on_device(Call call, CUdevice device, Body&& body) {
  return initialised(call, [&]() -> CUresult {
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    const std::lock_guard lock(driver().mutex);
    return body(static_cast<std::size_t>(device));
  });
}

CUresult set_current(std::size_t device, CUmemoryPool handle) {
  const Pool* pool = driver().pools.find(handle);
  if (pool == nullptr || pool->device != static_cast<int>(device)) return CUDA_ERROR_INVALID_VALUE;
  driver().current_pools[device] = handle;
  return CUDA_SUCCESS;
}

bool is_number32(CUmemPool_attribute which) { return which <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; }

// The pools by location that CUDA 13 added: only pinned device memory has them here.
template <class Body>
CUresult on_location(Call call, const CUmemLocation* location, CUmemAllocationType type, Body&& body) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_NOT_SUPPORTED;
  return on_device(call, location->id, body);
}

}  // namespace
}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

SIMGPU_BOTH(cuMemAllocAsync, (CUdeviceptr * out, size_t bytes, CUstream stream),
            allocate(kCall, out, bytes, nullptr, false, on(stream)))
SIMGPU_BOTH(cuMemAllocFromPoolAsync, (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream),
            allocate(kCall, out, bytes, pool, true, on(stream)))
SIMGPU_BOTH(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), free_later(kCall, address, on(stream)))

extern "C" {

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  return on_device(Call::cuDeviceGetDefaultMemPool, device, [=](std::size_t index) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = driver().default_pools[index];
    return CUDA_SUCCESS;
  });
}
CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  return on_device(Call::cuDeviceGetMemPool, device, [=](std::size_t index) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = driver().current_pools[index];
    return CUDA_SUCCESS;
  });
}
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  return on_device(Call::cuDeviceSetMemPool, device, [=](std::size_t index) { return set_current(index, pool); });
}
CUresult cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  return on_location(Call::cuMemGetDefaultMemPool, location, type, [=](std::size_t index) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = driver().default_pools[index];
    return CUDA_SUCCESS;
  });
}
CUresult cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  return on_location(Call::cuMemGetMemPool, location, type, [=](std::size_t index) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = driver().current_pools[index];
    return CUDA_SUCCESS;
  });
}
CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  return on_location(Call::cuMemSetMemPool, location, type,
                     [=](std::size_t index) { return set_current(index, pool); });
}

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  return initialised(Call::cuMemPoolCreate, [=] {
    if (out == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool is_managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (!is_managed && properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
    const bool is_on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (!is_on_device && !is_managed) return CUDA_ERROR_NOT_SUPPORTED;
    const int device = is_on_device ? properties->location.id : 0;
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    *out = driver().pools.create();
    Pool& pool = *driver().pools.find(*out);
    pool.device = device;
    pool.type = properties->allocType;
    pool.location = properties->location;
    return CUDA_SUCCESS;
  });
}

// What was allocated from the pool stays valid; the device falls back to its default pool.
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return on_pool(Call::cuMemPoolDestroy, handle, [=](const Pool& pool) {
    if (pool.is_default) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(driver().mutex);
    for (std::size_t device = 0; device < driver().current_pools.size(); ++device) {
      if (driver().current_pools[device] == handle) driver().current_pools[device] = driver().default_pools[device];
    }
    driver().pools.destroy(handle);
    return CUDA_SUCCESS;
  });
}
CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t) {
  return on_pool(Call::cuMemPoolTrimTo, handle, [](const Pool&) { return CUDA_SUCCESS; });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void* value) {
  return on_pool(Call::cuMemPoolSetAttribute, handle, [=](Pool& pool) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t number = is_number32(which) ? static_cast<std::uint64_t>(*static_cast<const int*>(value))
                                                    : *static_cast<const cuuint64_t*>(value);
    const std::lock_guard lock(driver().mutex);
    switch (which) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool.settings[which] = number;
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (number != 0) return CUDA_ERROR_INVALID_VALUE;  // a high-water mark can only be reset
        pool.used_high_bytes = pool.used_bytes;
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void* value) {
  return on_pool(Call::cuMemPoolGetAttribute, handle, [=](const Pool& pool) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(driver().mutex);
    const auto set = pool.settings.find(which);
    if (is_number32(which)) {
      *static_cast<int*>(value) = set == pool.settings.end() ? 1 : static_cast<int>(set->second);
      return CUDA_SUCCESS;
    }
    auto& number = *static_cast<cuuint64_t*>(value);
    switch (which) {
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        number = set == pool.settings.end() ? 0 : set->second;
        break;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        number = pool.used_bytes;
        break;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        number = pool.used_high_bytes;
        break;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

// Every simulated device can reach every other's memory.
CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* access, size_t count) {
  return on_pool(Call::cuMemPoolSetAccess, handle, [=](const Pool&) {
    return access == nullptr && count != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}
CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  return on_pool(Call::cuMemPoolGetAccess, handle, [=](const Pool&) {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
