// Allocation, pools, managed memory and pointer attributes.
#include "tests/simgpu/runtime/runtime.hpp"

namespace {

using namespace hmshim::simgpu::runtime;

CUdeviceptr* out(void** pointer) { return reinterpret_cast<CUdeviceptr*>(pointer); }
CUdeviceptr* addresses(void** pointers) { return reinterpret_cast<CUdeviceptr*>(pointers); }
// cudaMemLocation and CUmemLocation have the same members and numbers (driver_types.h, cuda.h).
CUmemLocation from_runtime(cudaMemLocation location) {
  CUmemLocation same{};
  same.type = static_cast<CUmemLocationType>(location.type);
  same.id = location.id;
  return same;
}
CUmemLocation* same(cudaMemLocation* locations) {
  static_assert(sizeof(cudaMemLocation) == sizeof(CUmemLocation));
  return reinterpret_cast<CUmemLocation*>(locations);
}

// An allocation that succeeded is known from then on, and forgotten before it is freed: another thread may get it.
CUresult allocated(CUresult result, void** pointer, std::size_t bytes) {
  if (result == CUDA_SUCCESS) note_tensor(address(*pointer), bytes);
  return result;
}
CUdeviceptr freed(void* pointer) {
  note_tensor(address(pointer), 0);
  return address(pointer);
}

cudaMemoryType type_of(unsigned driver_type, bool is_managed) {
  if (is_managed) return cudaMemoryTypeManaged;
  if (driver_type == CU_MEMORYTYPE_HOST) return cudaMemoryTypeHost;
  return driver_type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
}

}  // namespace

SIMGPU_RUNTIME_BOTH(cudaMallocAsync, _ptsz, (void** pointer, size_t bytes, cudaStream_t stream),
                    { return allocated(cu.cuMemAllocAsync_(out(pointer), bytes, stream), pointer, bytes); })
SIMGPU_RUNTIME_BOTH(cudaMallocFromPoolAsync, _ptsz,
                    (void** pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream), {
                      return allocated(cu.cuMemAllocFromPoolAsync_(out(pointer), bytes, pool, stream), pointer, bytes);
                    })
SIMGPU_RUNTIME_BOTH(cudaFreeAsync, _ptsz, (void* pointer, cudaStream_t stream),
                    { return cu.cuMemFreeAsync_(freed(pointer), stream); })
SIMGPU_RUNTIME_BOTH(cudaMemPrefetchAsync, _ptsz,
                    (const void* pointer, size_t bytes, cudaMemLocation location, unsigned flags, cudaStream_t stream),
                    { return cu.cuMemPrefetchAsync_(address(pointer), bytes, from_runtime(location), flags, stream); })
SIMGPU_RUNTIME_BOTH(cudaMemPrefetchBatchAsync, _ptsz,
                    (void** pointers, size_t* sizes, size_t count, cudaMemLocation* locations,
                     size_t* first_of_location, size_t location_count, unsigned long long flags, cudaStream_t stream),
                    {
                      return cu.cuMemPrefetchBatchAsync_(addresses(pointers), sizes, count, same(locations),
                                                         first_of_location, location_count, flags, stream);
                    })
SIMGPU_RUNTIME_BOTH(cudaMemDiscardBatchAsync, _ptsz,
                    (void** pointers, size_t* sizes, size_t count, unsigned long long flags, cudaStream_t stream),
                    { return cu.cuMemDiscardBatchAsync_(addresses(pointers), sizes, count, flags, stream); })
SIMGPU_RUNTIME_BOTH(cudaMemDiscardAndPrefetchBatchAsync, _ptsz,
                    (void** pointers, size_t* sizes, size_t count, cudaMemLocation* locations,
                     size_t* first_of_location, size_t location_count, unsigned long long flags, cudaStream_t stream),
                    {
                      return cu.cuMemDiscardAndPrefetchBatchAsync_(addresses(pointers), sizes, count, same(locations),
                                                                   first_of_location, location_count, flags, stream);
                    })
SIMGPU_RUNTIME_BOTH(cudaStreamAttachMemAsync, _ptsz, (cudaStream_t stream, void* pointer, size_t bytes, unsigned flags),
                    { return cu.cuStreamAttachMemAsync_(stream, address(pointer), bytes, flags); })

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return run([&](const Driver& cu) {
    if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // The runtime, unlike the driver, gives a null pointer for nothing.
    if (bytes == 0) {
      *pointer = nullptr;
      return CUDA_SUCCESS;
    }
    return allocated(cu.cuMemAlloc_(out(pointer), bytes), pointer, bytes);
  });
}
cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  return run([&](const Driver& cu) { return cu.cuMemAllocPitch_(out(pointer), pitch, width, height, 4); });
}
cudaError_t cudaMalloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
  return run([&](const Driver& cu) {
    if (pitched == nullptr) return CUDA_ERROR_INVALID_VALUE;
    pitched->xsize = extent.width;
    pitched->ysize = extent.height;
    return cu.cuMemAllocPitch_(out(&pitched->ptr), &pitched->pitch, extent.width, extent.height * extent.depth, 4);
  });
}
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  return run([&](const Driver& cu) { return cu.cuMemAllocManaged_(out(pointer), bytes, flags); });
}
cudaError_t cudaFree(void* pointer) {
  return run([&](const Driver& cu) { return cu.cuMemFree_(freed(pointer)); });
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return run([&](const Driver& cu) { return cu.cuMemHostAlloc_(pointer, bytes, 0); });
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return run([&](const Driver& cu) { return cu.cuMemHostAlloc_(pointer, bytes, flags); });
}
cudaError_t cudaFreeHost(void* pointer) {
  return run([&](const Driver& cu) { return cu.cuMemFreeHost_(pointer); });
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return run([&](const Driver& cu) { return cu.cuMemHostRegister_(pointer, bytes, flags); });
}
cudaError_t cudaHostUnregister(void* pointer) {
  return run([&](const Driver& cu) { return cu.cuMemHostUnregister_(pointer); });
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return run([&](const Driver& cu) { return cu.cuMemHostGetDevicePointer_(out(device), host, flags); });
}
cudaError_t cudaHostGetFlags(unsigned* flags, void* pointer) {
  return run([&](const Driver& cu) { return cu.cuMemHostGetFlags_(flags, pointer); });
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return run([&](const Driver& cu) { return cu.cuMemGetInfo_(free_bytes, total_bytes); });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return run([&](const Driver& cu) {
    if (attributes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    unsigned type = 0;
    unsigned is_managed = 0;
    int device = 0;
    void* device_pointer = nullptr;
    void* host_pointer = nullptr;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                   CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void* data[] = {&type, &is_managed, &device, &device_pointer, &host_pointer};
    const CUresult result = cu.cuPointerGetAttributes_(5, which, data, address(pointer));
    if (result != CUDA_SUCCESS) return result;
    *attributes = {};
    attributes->type = type_of(type, is_managed != 0);
    attributes->device = device;
    attributes->devicePointer = device_pointer;
    attributes->hostPointer =
        attributes->type == cudaMemoryTypeUnregistered ? const_cast<void*>(pointer) : host_pointer;
    return CUDA_SUCCESS;
  });
}

cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation location) {
  return run([&](const Driver& cu) {
    return cu.cuMemAdvise_(address(pointer), bytes, static_cast<CUmem_advise>(advice), from_runtime(location));
  });
}
cudaError_t cudaMemRangeGetAttribute(void* data, size_t data_bytes, cudaMemRangeAttribute which, const void* pointer,
                                     size_t bytes) {
  return run([&](const Driver& cu) {
    return cu.cuMemRangeGetAttribute_(data, data_bytes, static_cast<CUmem_range_attribute>(which), address(pointer),
                                      bytes);
  });
}
cudaError_t cudaMemRangeGetAttributes(void** data, size_t* data_bytes, cudaMemRangeAttribute* which, size_t count,
                                      const void* pointer, size_t bytes) {
  return run([&](const Driver& cu) {
    return cu.cuMemRangeGetAttributes_(data, data_bytes, reinterpret_cast<CUmem_range_attribute*>(which), count,
                                       address(pointer), bytes);
  });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return run([&](const Driver& cu) { return cu.cuDeviceGetDefaultMemPool_(pool, device); });
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return run([&](const Driver& cu) { return cu.cuDeviceGetMemPool_(pool, device); });
}
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return run([&](const Driver& cu) { return cu.cuDeviceSetMemPool_(device, pool); });
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  static_assert(sizeof(cudaMemPoolProps) == sizeof(CUmemPoolProps));
  return run(
      [&](const Driver& cu) { return cu.cuMemPoolCreate_(pool, reinterpret_cast<const CUmemPoolProps*>(properties)); });
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return run([&](const Driver& cu) { return cu.cuMemPoolDestroy_(pool); });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
  return run([&](const Driver& cu) { return cu.cuMemPoolTrimTo_(pool, bytes); });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  return run([&](const Driver& cu) {
    return cu.cuMemPoolSetAttribute_(pool, static_cast<CUmemPool_attribute>(which), value);
  });
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  return run([&](const Driver& cu) {
    return cu.cuMemPoolGetAttribute_(pool, static_cast<CUmemPool_attribute>(which), value);
  });
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access, size_t count) {
  static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc));
  return run([&](const Driver& cu) {
    return cu.cuMemPoolSetAccess_(pool, reinterpret_cast<const CUmemAccessDesc*>(access), count);
  });
}
cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool, cudaMemLocation* location) {
  return run([&](const Driver& cu) {
    return cu.cuMemPoolGetAccess_(reinterpret_cast<CUmemAccess_flags*>(flags), pool, same(location));
  });
}

}  // extern "C"
