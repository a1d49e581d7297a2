// Copies and fills: the runtime's kinds to the driver's functions.
#include "tests/simgpu/runtime/registration.hpp"
#include "tests/simgpu/runtime/runtime.hpp"

namespace {

using namespace hmshim::simgpu::runtime;

CUresult copy(const Driver& cu, void* to, const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return CUDA_SUCCESS;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return cu.cuMemcpyHtoD_(address(to), source, bytes);
    case cudaMemcpyDeviceToHost:
      return cu.cuMemcpyDtoH_(to, address(source), bytes);
    case cudaMemcpyDeviceToDevice:
      return cu.cuMemcpyDtoD_(address(to), address(source), bytes);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
      return cu.cuMemcpy_(address(to), address(source), bytes);
  }
  return static_cast<CUresult>(cudaErrorInvalidMemcpyDirection);
}

CUresult copy_async(const Driver& cu, void* to, const void* source, size_t bytes, cudaMemcpyKind kind,
                    cudaStream_t stream) {
  if (bytes == 0) return CUDA_SUCCESS;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return cu.cuMemcpyHtoDAsync_(address(to), source, bytes, stream);
    case cudaMemcpyDeviceToHost:
      return cu.cuMemcpyDtoHAsync_(to, address(source), bytes, stream);
    case cudaMemcpyDeviceToDevice:
      return cu.cuMemcpyDtoDAsync_(address(to), address(source), bytes, stream);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
      return cu.cuMemcpyAsync_(address(to), address(source), bytes, stream);
  }
  return static_cast<CUresult>(cudaErrorInvalidMemcpyDirection);
}

// The driver's batch calls lack the runtime's const; they change nothing.
CUdeviceptr* driver_addresses(void* const* pointers) {
  return reinterpret_cast<CUdeviceptr*>(const_cast<void**>(pointers));
}
CUdeviceptr* driver_addresses(const void* const* pointers) {
  return reinterpret_cast<CUdeviceptr*>(const_cast<const void**>(pointers));
}

CUmemorytype memory_type(cudaMemcpyKind kind, bool is_destination) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return CU_MEMORYTYPE_HOST;
    case cudaMemcpyHostToDevice:
      return is_destination ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    case cudaMemcpyDeviceToHost:
      return is_destination ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    case cudaMemcpyDeviceToDevice:
      return CU_MEMORYTYPE_DEVICE;
    default:
      return CU_MEMORYTYPE_UNIFIED;
  }
}

CUDA_MEMCPY2D planar(void* to, size_t to_pitch, const void* source, size_t source_pitch, size_t width, size_t height,
                     cudaMemcpyKind kind) {
  CUDA_MEMCPY2D shape{};
  shape.dstMemoryType = memory_type(kind, true);
  shape.srcMemoryType = memory_type(kind, false);
  shape.dstHost = to;
  shape.srcHost = source;
  shape.dstDevice = address(to);
  shape.srcDevice = address(source);
  shape.dstPitch = to_pitch;
  shape.srcPitch = source_pitch;
  shape.WidthInBytes = width;
  shape.Height = height;
  return shape;
}

}  // namespace

namespace hmshim::simgpu::runtime {

// Without arrays. cudaErrorNotSupported for those.
cudaError_t to_driver(const cudaMemcpy3DParms& given, CUDA_MEMCPY3D* shape) {
  if (given.srcArray != nullptr || given.dstArray != nullptr) return cudaErrorNotSupported;
  *shape = {};
  shape->srcMemoryType = memory_type(given.kind, false);
  shape->srcHost = given.srcPtr.ptr;
  shape->srcDevice = address(given.srcPtr.ptr);
  shape->srcPitch = given.srcPtr.pitch;
  shape->srcHeight = given.srcPtr.ysize;
  shape->srcXInBytes = given.srcPos.x;
  shape->srcY = given.srcPos.y;
  shape->srcZ = given.srcPos.z;
  shape->dstMemoryType = memory_type(given.kind, true);
  shape->dstHost = given.dstPtr.ptr;
  shape->dstDevice = address(given.dstPtr.ptr);
  shape->dstPitch = given.dstPtr.pitch;
  shape->dstHeight = given.dstPtr.ysize;
  shape->dstXInBytes = given.dstPos.x;
  shape->dstY = given.dstPos.y;
  shape->dstZ = given.dstPos.z;
  shape->WidthInBytes = given.extent.width;
  shape->Height = given.extent.height;
  shape->Depth = given.extent.depth;
  return cudaSuccess;
}

}  // namespace hmshim::simgpu::runtime

SIMGPU_RUNTIME_BOTH(cudaMemcpy, _ptds, (void* to, const void* source, size_t bytes, cudaMemcpyKind kind),
                    { return copy(cu, to, source, bytes, kind); })
SIMGPU_RUNTIME_BOTH(cudaMemcpyAsync, _ptsz,
                    (void* to, const void* source, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
                    { return copy_async(cu, to, source, bytes, kind, stream); })
SIMGPU_RUNTIME_BOTH(cudaMemcpyToSymbol, _ptds,
                    (const void* symbol, const void* source, size_t bytes, size_t offset, cudaMemcpyKind kind), {
                      CUdeviceptr variable = 0;
                      if (const cudaError_t error = find_variable(symbol, &variable, nullptr); error != cudaSuccess)
                        return error;
                      return from(copy(cu, reinterpret_cast<void*>(variable + offset), source, bytes, kind));
                    })
SIMGPU_RUNTIME_BOTH(cudaMemcpyFromSymbol, _ptds,
                    (void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind), {
                      CUdeviceptr variable = 0;
                      if (const cudaError_t error = find_variable(symbol, &variable, nullptr); error != cudaSuccess)
                        return error;
                      return from(copy(cu, to, reinterpret_cast<const void*>(variable + offset), bytes, kind));
                    })
SIMGPU_RUNTIME_BOTH(
    cudaMemcpyToSymbolAsync, _ptsz,
    (const void* symbol, const void* source, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream), {
      CUdeviceptr variable = 0;
      if (const cudaError_t error = find_variable(symbol, &variable, nullptr); error != cudaSuccess) return error;
      return from(copy_async(cu, reinterpret_cast<void*>(variable + offset), source, bytes, kind, stream));
    })
SIMGPU_RUNTIME_BOTH(
    cudaMemcpyFromSymbolAsync, _ptsz,
    (void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream), {
      CUdeviceptr variable = 0;
      if (const cudaError_t error = find_variable(symbol, &variable, nullptr); error != cudaSuccess) return error;
      return from(copy_async(cu, to, reinterpret_cast<const void*>(variable + offset), bytes, kind, stream));
    })
SIMGPU_RUNTIME_BOTH(cudaMemcpy2D, _ptds,
                    (void* to, size_t to_pitch, const void* source, size_t source_pitch, size_t width, size_t height,
                     cudaMemcpyKind kind),
                    {
                      const CUDA_MEMCPY2D shape = planar(to, to_pitch, source, source_pitch, width, height, kind);
                      return cu.cuMemcpy2DUnaligned_(&shape);
                    })
SIMGPU_RUNTIME_BOTH(cudaMemcpy2DAsync, _ptsz,
                    (void* to, size_t to_pitch, const void* source, size_t source_pitch, size_t width, size_t height,
                     cudaMemcpyKind kind, cudaStream_t stream),
                    {
                      const CUDA_MEMCPY2D shape = planar(to, to_pitch, source, source_pitch, width, height, kind);
                      return cu.cuMemcpy2DAsync_(&shape, stream);
                    })
SIMGPU_RUNTIME_BOTH(cudaMemcpy3D, _ptds, (const cudaMemcpy3DParms* given), {
  CUDA_MEMCPY3D shape;
  if (given == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = to_driver(*given, &shape); error != cudaSuccess) return error;
  return from(cu.cuMemcpy3D_(&shape));
})
SIMGPU_RUNTIME_BOTH(cudaMemcpy3DAsync, _ptsz, (const cudaMemcpy3DParms* given, cudaStream_t stream), {
  CUDA_MEMCPY3D shape;
  if (given == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = to_driver(*given, &shape); error != cudaSuccess) return error;
  return from(cu.cuMemcpy3DAsync_(&shape, stream));
})
SIMGPU_RUNTIME_BOTH(cudaMemset, _ptds, (void* to, int value, size_t bytes),
                    { return cu.cuMemsetD8_(address(to), static_cast<unsigned char>(value), bytes); })
SIMGPU_RUNTIME_BOTH(cudaMemsetAsync, _ptsz, (void* to, int value, size_t bytes, cudaStream_t stream),
                    { return cu.cuMemsetD8Async_(address(to), static_cast<unsigned char>(value), bytes, stream); })
SIMGPU_RUNTIME_BOTH(cudaMemset2D, _ptds, (void* to, size_t pitch, int value, size_t width, size_t height),
                    { return cu.cuMemsetD2D8_(address(to), pitch, static_cast<unsigned char>(value), width, height); })
SIMGPU_RUNTIME_BOTH(cudaMemset2DAsync, _ptsz,
                    (void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream), {
                      return cu.cuMemsetD2D8Async_(address(to), pitch, static_cast<unsigned char>(value), width, height,
                                                   stream);
                    })
SIMGPU_RUNTIME_BOTH(cudaMemcpyBatchAsync, _ptsz,
                    (void* const* to, const void* const* source, const size_t* sizes, size_t count,
                     cudaMemcpyAttributes* attributes, size_t* first_of_attributes, size_t attribute_count,
                     cudaStream_t stream),
                    {
                      static_assert(sizeof(cudaMemcpyAttributes) == sizeof(CUmemcpyAttributes));
                      return cu.cuMemcpyBatchAsync_(driver_addresses(to), driver_addresses(source),
                                                    const_cast<size_t*>(sizes), count,
                                                    reinterpret_cast<CUmemcpyAttributes*>(attributes),
                                                    first_of_attributes, attribute_count, stream);
                    })

extern "C" {

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* source, int, size_t bytes, cudaStream_t stream) {
  return run([&](const Driver& cu) { return copy_async(cu, to, source, bytes, cudaMemcpyDeviceToDevice, stream); });
}
cudaError_t cudaMemcpyPeer(void* to, int, const void* source, int, size_t bytes) {
  return run([&](const Driver& cu) { return copy(cu, to, source, bytes, cudaMemcpyDeviceToDevice); });
}
cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return run([&](const Driver&) { return find_variable(symbol, reinterpret_cast<CUdeviceptr*>(pointer), nullptr); });
}
cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  return run([&](const Driver&) {
    CUdeviceptr where = 0;
    return find_variable(symbol, &where, bytes);
  });
}

}  // extern "C"
