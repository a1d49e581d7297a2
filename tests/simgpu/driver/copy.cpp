// Copies and fills, in all forms but those of CUDA arrays.
#include <limits>

#include "tests/simgpu/driver/capture.hpp"
#include "tests/simgpu/driver/flavours.hpp"
#include "tests/simgpu/driver/memory.hpp"
#include "tests/simgpu/driver/work.hpp"

namespace hmshim::simgpu {
namespace {

// What a call says about a side of its copy; Any: unified addressing decides.
enum class Side : std::uint8_t { Host, Device, Any };

struct Shape {
  Side destination;
  Side source;
};
constexpr Shape kHostToDevice{Side::Device, Side::Host};
constexpr Shape kDeviceToHost{Side::Host, Side::Device};
constexpr Shape kDeviceToDevice{Side::Device, Side::Device};
constexpr Shape kUnified{Side::Any, Side::Any};

// Bytes from the first to the last that a side touches.
std::uint64_t extent(const CopyWork& work, std::size_t pitch, std::size_t slice) {
  return (work.depth - 1) * slice + (work.height - 1) * pitch + work.width;
}

bool is_valid_side(Side side, Place place) {
  if (place == Place::Invalid) return false;
  return side != Side::Device || place != Place::Pageable;
}

enum class Completion : std::uint8_t { Asynchronous, Synchronous };

// Enqueues a copy. Where a host side is pageable the call returns after the copy: the real driver stages such memory
// before it returns ("API synchronization behavior" of the driver API reference).
CUresult copy(Stream& stream, const CopyWork& work, Shape shape, Completion completion) {
  if (work.width == 0 || work.height == 0 || work.depth == 0) return CUDA_SUCCESS;
  const Place destination = place_of(work.destination, extent(work, work.destination_pitch, work.destination_slice));
  const Place source = place_of(work.source, extent(work, work.source_pitch, work.source_slice));
  if (!is_valid_side(shape.destination, destination) || !is_valid_side(shape.source, source))
    return CUDA_ERROR_INVALID_VALUE;
  if (work.destination == 0 || work.source == 0) return CUDA_ERROR_INVALID_VALUE;
  if (completion == Completion::Synchronous) {
    if (const CUresult result = check_unsafe_call(); result != CUDA_SUCCESS) return result;
  }
  const CUresult result = submit(stream, work);
  if (result != CUDA_SUCCESS || stream.capture.load() != nullptr) return result;
  const bool is_on_device = destination != Place::Pageable && destination != Place::Pinned &&
                            source != Place::Pageable && source != Place::Pinned;
  const bool is_pageable = destination == Place::Pageable || source == Place::Pageable;
  // Even the synchronous call does not wait for a copy within the device.
  if (is_pageable || (completion == Completion::Synchronous && !is_on_device)) {
    return to_result(driver().model->synchronize_stream(stream.id));
  }
  return CUDA_SUCCESS;
}

CUresult linear(Call call, CUstream handle, std::uint64_t destination, std::uint64_t source, std::size_t bytes,
                Shape shape, Completion completion) {
  return in_context(call, [=](const Context&) {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return copy(*stream, {.destination = destination, .source = source, .width = bytes}, shape, completion);
  });
}

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

// One side of a CUDA_MEMCPY2D or 3D: its first byte and its row pitch. False for an array, which the model lacks.
bool locate(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t pitch, std::size_t x, std::size_t y,
            std::uint64_t* address, Side* side) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      *address = address_of(host);
      *side = Side::Host;
      break;
    case CU_MEMORYTYPE_DEVICE:
      *address = device;
      *side = Side::Device;
      break;
    case CU_MEMORYTYPE_UNIFIED:
      *address = device;
      *side = Side::Any;
      break;
    default:
      return false;
  }
  *address += y * pitch + x;
  return true;
}

CUresult planar(Call call, CUstream handle, const CUDA_MEMCPY2D* given, Completion completion) {
  return in_context(call, [=](const Context&) {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CopyWork work{.width = given->WidthInBytes,
                  .height = given->Height,
                  .destination_pitch = given->dstPitch == 0 ? given->WidthInBytes : given->dstPitch,
                  .source_pitch = given->srcPitch == 0 ? given->WidthInBytes : given->srcPitch};
    Shape shape{};
    if (!locate(given->dstMemoryType, given->dstHost, given->dstDevice, work.destination_pitch, given->dstXInBytes,
                given->dstY, &work.destination, &shape.destination) ||
        !locate(given->srcMemoryType, given->srcHost, given->srcDevice, work.source_pitch, given->srcXInBytes,
                given->srcY, &work.source, &shape.source)) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (work.width > work.destination_pitch || work.width > work.source_pitch) return CUDA_ERROR_INVALID_VALUE;
    return copy(*stream, work, shape, completion);
  });
}

// CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER name their fields alike.
template <class Given>
CUresult volume(Call call, CUstream handle, const Given* given, Completion completion) {
  return in_context(call, [=](const Context&) {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CopyWork work;
    Shape shape{};
    if (const CUresult result = to_work(*given, work); result != CUDA_SUCCESS) return result;
    shape.destination = given->dstMemoryType == CU_MEMORYTYPE_DEVICE ? Side::Device : Side::Any;
    shape.source = given->srcMemoryType == CU_MEMORYTYPE_DEVICE ? Side::Device : Side::Any;
    return copy(*stream, work, shape, completion);
  });
}

CUresult batch(Call call, CUstream handle, CUdeviceptr* destinations, CUdeviceptr* sources, std::size_t* sizes,
               std::size_t count) {
  return in_context(call, [=](const Context&) {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (handle == nullptr || stream->is_legacy) return CUDA_ERROR_INVALID_VALUE;
    if (destinations == nullptr || sources == nullptr || sizes == nullptr || count == 0)
      return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture.load() != nullptr) return refuse_capture(*stream);
    for (std::size_t i = 0; i < count; ++i) {
      const CopyWork work{.destination = destinations[i], .source = sources[i], .width = sizes[i]};
      if (const CUresult result = copy(*stream, work, kUnified, Completion::Asynchronous); result != CUDA_SUCCESS) {
        return result;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult fill(Call call, CUstream handle, const FillWork& work) {
  return in_context(call, [&](const Context&) {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (work.width == 0 || work.height == 0) return CUDA_SUCCESS;
    if (work.destination % work.element_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t row_bytes = work.width * work.element_bytes;
    if (work.height > 1 && work.pitch < row_bytes) return CUDA_ERROR_INVALID_VALUE;
    const Place place = place_of(work.destination, (work.height - 1) * work.pitch + row_bytes);
    if (place == Place::Invalid || place == Place::Pageable) return CUDA_ERROR_INVALID_VALUE;
    return submit(*stream, work);
  });
}

FillWork row(CUdeviceptr destination, unsigned value, unsigned element_bytes, std::size_t width) {
  return {.destination = destination, .value = value, .element_bytes = element_bytes, .width = width};
}
FillWork rows(CUdeviceptr destination, std::size_t pitch, unsigned value, unsigned element_bytes, std::size_t width,
              std::size_t height) {
  return {destination, pitch, value, element_bytes, width, height};
}

}  // namespace

template <class Given>
CUresult to_work(const Given& given, CopyWork& work) {
  work.width = given.WidthInBytes;
  work.height = given.Height;
  work.depth = given.Depth;
  work.destination_pitch = given.dstPitch == 0 ? given.WidthInBytes : given.dstPitch;
  work.source_pitch = given.srcPitch == 0 ? given.WidthInBytes : given.srcPitch;
  work.destination_slice = work.destination_pitch * (given.dstHeight == 0 ? given.Height : given.dstHeight);
  work.source_slice = work.source_pitch * (given.srcHeight == 0 ? given.Height : given.srcHeight);
  Side side;
  if (!locate(given.dstMemoryType, given.dstHost, given.dstDevice, work.destination_pitch, given.dstXInBytes,
              given.dstY, &work.destination, &side) ||
      !locate(given.srcMemoryType, given.srcHost, given.srcDevice, work.source_pitch, given.srcXInBytes, given.srcY,
              &work.source, &side)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  work.destination += given.dstZ * work.destination_slice;
  work.source += given.srcZ * work.source_slice;
  if (work.width > work.destination_pitch || work.width > work.source_pitch) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
template CUresult to_work(const CUDA_MEMCPY3D&, CopyWork&);
template CUresult to_work(const CUDA_MEMCPY3D_PEER&, CopyWork&);

}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

namespace {
constexpr auto kNow = Completion::Synchronous;
constexpr auto kLater = Completion::Asynchronous;
}  // namespace

SIMGPU_BOTH_SYNCHRONOUS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
                        linear(kCall, on(nullptr), to, from, bytes, kUnified, kNow))
SIMGPU_BOTH(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
            linear(kCall, on(stream), to, from, bytes, kUnified, kLater))
SIMGPU_BOTH_SYNCHRONOUS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t bytes),
                        linear(kCall, on(nullptr), to, address_of(from), bytes, kHostToDevice, kNow))
SIMGPU_BOTH(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t bytes, CUstream stream),
            linear(kCall, on(stream), to, address_of(from), bytes, kHostToDevice, kLater))
SIMGPU_BOTH_SYNCHRONOUS(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t bytes),
                        linear(kCall, on(nullptr), address_of(to), from, bytes, kDeviceToHost, kNow))
SIMGPU_BOTH(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes, CUstream stream),
            linear(kCall, on(stream), address_of(to), from, bytes, kDeviceToHost, kLater))
SIMGPU_BOTH_SYNCHRONOUS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
                        linear(kCall, on(nullptr), to, from, bytes, kDeviceToDevice, kNow))
SIMGPU_BOTH(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
            linear(kCall, on(stream), to, from, bytes, kDeviceToDevice, kLater))
SIMGPU_BOTH_SYNCHRONOUS(cuMemcpyPeer, (CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes),
                        linear(kCall, on(nullptr), to, from, bytes, kDeviceToDevice, kNow))
SIMGPU_BOTH(cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream),
            linear(kCall, on(stream), to, from, bytes, kDeviceToDevice, kLater))
SIMGPU_BOTH_SYNCHRONOUS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D* shape), planar(kCall, on(nullptr), shape, kNow))
SIMGPU_BOTH_SYNCHRONOUS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D* shape), planar(kCall, on(nullptr), shape, kNow))
SIMGPU_BOTH(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* shape, CUstream stream), planar(kCall, on(stream), shape, kLater))
SIMGPU_BOTH_SYNCHRONOUS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D* shape), volume(kCall, on(nullptr), shape, kNow))
SIMGPU_BOTH(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D* shape, CUstream stream), volume(kCall, on(stream), shape, kLater))
SIMGPU_BOTH_SYNCHRONOUS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER* shape), volume(kCall, on(nullptr), shape, kNow))
SIMGPU_BOTH(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER* shape, CUstream stream),
            volume(kCall, on(stream), shape, kLater))
SIMGPU_BOTH(cuMemcpyBatchAsync_v2,
            (CUdeviceptr * to, CUdeviceptr* from, size_t* sizes, size_t count, CUmemcpyAttributes*, size_t*, size_t,
             CUstream stream),
            batch(kCall, on(stream), to, from, sizes, count))
SIMGPU_BOTH(cuMemcpyBatchAsync,
            (CUdeviceptr * to, CUdeviceptr* from, size_t* sizes, size_t count, CUmemcpyAttributes*, size_t*, size_t,
             size_t*, CUstream stream),
            batch(kCall, on(stream), to, from, sizes, count))

SIMGPU_BOTH_SYNCHRONOUS(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count),
                        fill(kCall, on(nullptr), row(to, value, 1, count)))
SIMGPU_BOTH_SYNCHRONOUS(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t count),
                        fill(kCall, on(nullptr), row(to, value, 2, count)))
SIMGPU_BOTH_SYNCHRONOUS(cuMemsetD32_v2, (CUdeviceptr to, unsigned value, size_t count),
                        fill(kCall, on(nullptr), row(to, value, 4, count)))
SIMGPU_BOTH(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
            fill(kCall, on(stream), row(to, value, 1, count)))
SIMGPU_BOTH(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
            fill(kCall, on(stream), row(to, value, 2, count)))
SIMGPU_BOTH(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream),
            fill(kCall, on(stream), row(to, value, 4, count)))
SIMGPU_BOTH_SYNCHRONOUS(cuMemsetD2D8_v2,
                        (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height),
                        fill(kCall, on(nullptr), rows(to, pitch, value, 1, width, height)))
SIMGPU_BOTH_SYNCHRONOUS(cuMemsetD2D16_v2,
                        (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
                        fill(kCall, on(nullptr), rows(to, pitch, value, 2, width, height)))
SIMGPU_BOTH_SYNCHRONOUS(cuMemsetD2D32_v2, (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height),
                        fill(kCall, on(nullptr), rows(to, pitch, value, 4, width, height)))
SIMGPU_BOTH(cuMemsetD2D8Async,
            (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),
            fill(kCall, on(stream), rows(to, pitch, value, 1, width, height)))
SIMGPU_BOTH(cuMemsetD2D16Async,
            (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),
            fill(kCall, on(stream), rows(to, pitch, value, 2, width, height)))
SIMGPU_BOTH(cuMemsetD2D32Async,
            (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream),
            fill(kCall, on(stream), rows(to, pitch, value, 4, width, height)))
