// Pointer queries: what the library gave in the place of the driver's device memory answers as device memory of the
// guest's own base and size. A framework that is told otherwise takes other paths, or refuses the tensor (DLPack knows
// managed memory as a type of its own).
#include <cstring>
#include <optional>

#include "interpose/handlers.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/shim.hpp"

namespace hmshim::interpose {

namespace {

template <class T>
void put(void* data, T value) noexcept {
  std::memcpy(data, &value, sizeof value);
}

// Overwrites those answers of the driver in which device memory differs from managed memory. The rest stands, above all
// what managed memory really cannot do: legacy IPC, GPUDirect RDMA, exportable handles.
void answer_as_device_memory(CUpointer_attribute attribute, const uvm::Allocation& allocation, void* data) noexcept {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(data, allocation.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(data, CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return put(data, std::uint64_t{0});
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(data, 0U);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(data, int{allocation.device});
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(data, allocation.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, allocation.bytes);
    default:
      return;
  }
}

// The driver still has memory that the guest has freed into a pool: it is asked about no memory at all.
CUdeviceptr for_driver(CUdeviceptr address) noexcept { return Shim::get().is_freed(address) ? 0 : address; }

}  // namespace

CUresult on_cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const CUresult result = real().cuPointerGetAttribute(data, attribute, for_driver(address));
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = Shim::get().find_ours(address);
  if (!allocation) return result;
  // Device memory has none, and this call says so by an error.
  if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER) return CUDA_ERROR_INVALID_VALUE;
  answer_as_device_memory(attribute, *allocation, data);
  return result;
}

CUresult on_cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  const CUresult result = real().cuPointerGetAttributes(count, attributes, data, for_driver(address));
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = Shim::get().find_ours(address);
  if (!allocation) return result;
  for (unsigned i = 0; i < count; ++i) answer_as_device_memory(attributes[i], *allocation, data[i]);
  return result;
}

CUresult on_cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  const CUresult result = real().cuMemGetAddressRange_v2(base, bytes, for_driver(address));
  if (result != CUDA_SUCCESS) return result;
  const auto allocation = Shim::get().find_ours(address);
  if (!allocation) return result;
  if (base != nullptr) *base = allocation->base;
  if (bytes != nullptr) *bytes = allocation->bytes;
  return result;
}

// Of a range that is not managed the driver says that the value is invalid (cuda.h).

CUresult on_cuMemRangeGetAttribute(void* data, size_t data_bytes, CUmem_range_attribute attribute, CUdeviceptr address,
                                   size_t bytes) {
  if (Shim::get().is_ours(address)) return CUDA_ERROR_INVALID_VALUE;
  return real().cuMemRangeGetAttribute(data, data_bytes, attribute, address, bytes);
}

CUresult on_cuMemRangeGetAttributes(void** data, size_t* data_bytes, CUmem_range_attribute* attributes, size_t count,
                                    CUdeviceptr address, size_t bytes) {
  if (Shim::get().is_ours(address)) return CUDA_ERROR_INVALID_VALUE;
  return real().cuMemRangeGetAttributes(data, data_bytes, attributes, count, address, bytes);
}

}  // namespace hmshim::interpose
