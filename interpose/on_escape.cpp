// Allocations that are not memory the library could manage, and requests to share memory that it does manage: passed on
// as they are, counted, and named in the report.
#include <fmt/format.h>

#include <algorithm>

#include "interpose/handlers.hpp"
#include "interpose/in_shim.hpp"
#include "interpose/log.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/shim.hpp"

namespace hmshim::interpose {

namespace {

CUresult counted(CUresult result, Bypass reason, std::uint64_t bytes) noexcept {
  if (result == CUDA_SUCCESS) Shim::get().bypasses.count(reason, bytes);
  return result;
}

std::uint64_t element_bytes(CUarray_format format) noexcept {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 1;  // block-compressed and planar formats take about a byte per element
  }
}

// Without the padding that only the driver knows.
std::uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned level = 0) noexcept {
  const auto extent = [level](std::size_t size) { return std::max<std::uint64_t>(size >> level, 1); };
  return extent(array.Width) * extent(array.Height) * extent(array.Depth) * array.NumChannels *
         element_bytes(array.Format);
}

// The driver has been asked to share the memory at `address`. When it is ours that is why it refused.
CUresult shared(CUresult result, CUdeviceptr address) noexcept {
  if (result == CUDA_SUCCESS) return result;
  contain([&] {
    Shim& shim = Shim::get();
    const auto allocation = shim.find_ours(address);
    if (!allocation) return;
    shim.bypasses.count(Bypass::sharing_refused, allocation->bytes);
    if (!shim.callers.note_refused(InShim::caller(), allocation->bytes)) return;
    log(LogLevel::Warn, [&] {
      const std::string library = library_of(InShim::caller());
      return fmt::format(
          "{} asks to share memory with another process or device, which the driver refuses for managed memory; "
          "HMSHIM_EXCLUDE keeps what a library allocates on the device",
          library.empty() ? "the program" : library);
    });
  });
  return result;
}

}  // namespace

CUresult on_cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  const CUresult result = real().cuArrayCreate_v2(array, descriptor);
  if (result != CUDA_SUCCESS) return result;
  return counted(result, Bypass::array,
                 array_bytes({.Width = descriptor->Width,
                              .Height = descriptor->Height,
                              .Depth = 0,
                              .Format = descriptor->Format,
                              .NumChannels = descriptor->NumChannels,
                              .Flags = 0}));
}

CUresult on_cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  const CUresult result = real().cuArray3DCreate_v2(array, descriptor);
  return result == CUDA_SUCCESS ? counted(result, Bypass::array, array_bytes(*descriptor)) : result;
}

CUresult on_cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                   unsigned levels) {
  const CUresult result = real().cuMipmappedArrayCreate(array, descriptor, levels);
  if (result != CUDA_SUCCESS) return result;
  std::uint64_t bytes = 0;
  for (unsigned level = 0; level < std::min(levels, 32U); ++level) bytes += array_bytes(*descriptor, level);
  return counted(result, Bypass::array, bytes);
}

CUresult on_cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                        unsigned long long flags) {
  const CUresult result = real().cuMemCreate(handle, bytes, properties, flags);
  if (result != CUDA_SUCCESS) return result;
  const bool is_on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  return counted(result, is_on_device ? Bypass::virtual_memory : Bypass::pinned_host, bytes);
}

CUresult on_cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                   CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  const CUresult result = real().cuGraphAddMemAllocNode(node, graph, dependencies, count, params);
  return result == CUDA_SUCCESS ? counted(result, Bypass::graph_allocation, params->bytesize) : result;
}

CUresult on_cuMemAllocHost_v2(void** address, size_t bytes) {
  return counted(real().cuMemAllocHost_v2(address, bytes), Bypass::pinned_host, bytes);
}
CUresult on_cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  return counted(real().cuMemHostAlloc(address, bytes, flags), Bypass::pinned_host, bytes);
}
CUresult on_cuMemHostRegister(void* address, size_t bytes, unsigned flags) {
  return counted(real().cuMemHostRegister(address, bytes, flags), Bypass::pinned_host, bytes);
}
CUresult on_cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  return counted(real().cuMemHostRegister_v2(address, bytes, flags), Bypass::pinned_host, bytes);
}

CUresult on_cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return shared(real().cuIpcGetMemHandle(handle, address), address);
}
CUresult on_cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                          unsigned long long flags) {
  return shared(real().cuMemGetHandleForAddressRange(handle, address, bytes, type, flags), address);
}

}  // namespace hmshim::interpose
