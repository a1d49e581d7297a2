// CUDA arrays: opaque to everyone but the copies to and from linear memory.
#include <algorithm>

#include "tests/simgpu/driver/capture.hpp"
#include "tests/simgpu/driver/flavours.hpp"
#include "tests/simgpu/driver/memory.hpp"

namespace hmshim::simgpu {
namespace {

struct Array {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

HandleTable<Array, CUarray, HandleKind::Array> g_arrays;
HandleTable<Array, CUmipmappedArray, HandleKind::MipmappedArray> g_mipmapped_arrays;

// 0 for a format or a number of channels that is not one of the plain ones.
std::uint64_t element_bytes(CUarray_format format, unsigned channels) {
  if (channels != 1 && channels != 2 && channels != 4) return 0;
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2 * std::uint64_t{channels};
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4 * std::uint64_t{channels};
    default:
      return 0;
  }
}

template <class Table, class Handle>
CUresult create(Call call, Table& table, Handle* out, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels) {
  return in_context(call, [&](const Context& context) -> CUresult {
    if (const CUresult result = check_unsafe_call(); result != CUDA_SUCCESS) return result;
    if (out == nullptr || shape == nullptr || shape->Width == 0 || levels == 0) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t element = element_bytes(shape->Format, shape->NumChannels);
    if (element == 0) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t bytes = 0;
    for (unsigned level = 0; level < levels; ++level) {
      bytes += std::max<std::uint64_t>(shape->Width >> level, 1) * std::max<std::uint64_t>(shape->Height >> level, 1) *
               std::max<std::uint64_t>(shape->Depth >> level, 1) * element;
    }
    std::uint64_t address = 0;
    const Status status = driver().model->allocate_device(context.device, bytes, &address);
    if (status != Status::kOk) return to_result(status);
    *out = table.create(Array{address, bytes});
    return CUDA_SUCCESS;
  });
}

template <class Table, class Handle>
CUresult destroy(Call call, Table& table, Handle handle) {
  return in_context(call, [&](const Context&) -> CUresult {
    const Array* array = table.find(handle);
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const Status status = driver().model->free_memory(array->address);
    table.destroy(handle);
    return to_result(status);
  });
}

CUresult copy(Call call, CUstream handle, CUarray array_handle, std::size_t offset, CUdeviceptr linear,
              std::size_t bytes, bool is_to_array) {
  return in_context(call, [=](const Context&) -> CUresult {
    Stream* stream = find_stream(handle);
    const Array* array = g_arrays.find(array_handle);
    if (stream == nullptr || array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (offset > array->bytes || bytes > array->bytes - offset) return CUDA_ERROR_INVALID_VALUE;
    const Place place = place_of(linear, bytes);
    if (place != Place::Device && place != Place::Managed) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_unsafe_call(); result != CUDA_SUCCESS) return result;
    CopyWork work{.destination = linear, .source = array->address + offset, .width = bytes};
    if (is_to_array) std::swap(work.destination, work.source);
    return submit(*stream, work);
  });
}

}  // namespace
}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* shape) {
  CUDA_ARRAY3D_DESCRIPTOR flat{};
  if (shape != nullptr) {
    flat.Width = shape->Width;
    flat.Height = shape->Height;
    flat.Format = shape->Format;
    flat.NumChannels = shape->NumChannels;
  }
  return create(Call::cuArrayCreate_v2, g_arrays, out, shape == nullptr ? nullptr : &flat, 1);
}
CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  return create(Call::cuArray3DCreate_v2, g_arrays, out, shape, 1);
}
CUresult cuArrayDestroy(CUarray array) { return destroy(Call::cuArrayDestroy, g_arrays, array); }
CUresult cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels) {
  return create(Call::cuMipmappedArrayCreate, g_mipmapped_arrays, out, shape, std::min(levels, 32U));
}
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return destroy(Call::cuMipmappedArrayDestroy, g_mipmapped_arrays, array);
}

}  // extern "C"

SIMGPU_BOTH_SYNCHRONOUS(cuMemcpyDtoA_v2, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
                        copy(kCall, on(nullptr), to, offset, from, bytes, true))
SIMGPU_BOTH_SYNCHRONOUS(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
                        copy(kCall, on(nullptr), from, offset, to, bytes, false))
