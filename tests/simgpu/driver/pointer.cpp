// What unified addressing knows about a pointer.
#include <cstring>

#include "tests/simgpu/driver/memory.hpp"

namespace hmshim::simgpu {
namespace {

template <class T>
CUresult put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUresult attribute(void* data, CUpointer_attribute which, std::uint64_t address, std::uint64_t base,
                   const Memory& memory) {
  const bool is_host = memory.origin == MemoryOrigin::Host || memory.origin == MemoryOrigin::Registered;
  const auto allocation = driver().model->find_allocation(address);
  const bool is_managed = allocation && allocation->kind == MemoryKind::kManaged;
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      // Pool and managed memory belong to no one context.
      return put(data, memory.origin == MemoryOrigin::Device || is_host ? memory.context : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(data, is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!is_host && !is_managed) return CUDA_ERROR_INVALID_VALUE;
      return put(data, address);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(data, static_cast<unsigned long long>(memory.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(data, static_cast<unsigned>(is_managed));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(data, memory.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(data, static_cast<unsigned>(memory.origin == MemoryOrigin::Device));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(data, base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, static_cast<std::size_t>(memory.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(data, 1U);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(data, 0ULL);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put(data, 0U);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, memory.pool);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put(data, 0U);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(data, static_cast<std::size_t>(memory.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(data, base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put(data, static_cast<unsigned long long>(memory.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put(data, 0U);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// For memory the driver has never seen: null or zero, as cuPointerGetAttributes documents.
std::size_t attribute_bytes(CUpointer_attribute which) {
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return 8;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS);
    default:
      return 4;
  }
}

}  // namespace
}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute which, CUdeviceptr address) {
  return in_context(Call::cuPointerGetAttribute, [=](const Context&) {
    const auto found = driver().find_memory(address);
    if (data == nullptr || !found) return CUDA_ERROR_INVALID_VALUE;
    return attribute(data, which, address, found->first, found->second);
  });
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** data, CUdeviceptr address) {
  return in_context(Call::cuPointerGetAttributes, [=](const Context&) {
    if (count == 0 || which == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto found = driver().find_memory(address);
    for (unsigned i = 0; i < count; ++i) {
      if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      if (found && attribute(data[i], which[i], address, found->first, found->second) == CUDA_SUCCESS) continue;
      std::memset(data[i], 0, attribute_bytes(which[i]));
      if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) put(data[i], int{CU_DEVICE_INVALID});
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute which, CUdeviceptr address) {
  return in_context(Call::cuPointerSetAttribute, [=](const Context&) {
    if (value == nullptr || which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    return driver().find_memory(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"
