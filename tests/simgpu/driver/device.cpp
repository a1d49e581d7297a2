// Devices: what they are called and what they can do.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/simgpu/driver/driver.hpp"

namespace hmshim::simgpu {
namespace {

// A call about one device.
template <class Body>
CUresult on_device(Call call, CUdevice device, Body&& body) {
  return initialised(call, [&]() -> CUresult {
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    return body();
  });
}

// Limits are those of compute capability 9.0 (CUDA programming guide, technical specifications); only what the profile
// knows differs between devices. What is not listed is not supported: 0.
int attribute(CUdevice_attribute which, CUdevice device) {
  const auto& given = driver().options.attributes;
  if (const auto found = given.find(which); found != given.end()) return found->second;
  const Profile& profile = driver().model->profile();
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return kSharedBytes;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return kSharedBytesOptIn;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return 228 << 10;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return 1 << 10;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
      return 64 << 10;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return 64 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return profile.multiprocessors;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return profile.compute_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return profile.compute_minor;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return 1'500'000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return 2'000'000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return 5120;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return 40 << 20;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
    case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
      return 512;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
      return 32;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 2;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
      return 2;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return device + 1;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      return 0;
    case CU_DEVICE_ATTRIBUTE_NUMA_ID:
      return -1;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
      return CU_MEM_HANDLE_TYPE_NONE;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS:
      return 1;
    default:
      return 0;
  }
}

CUresult uuid(CUuuid* out, CUdevice device) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = {};
  std::snprintf(out->bytes, sizeof out->bytes, "simgpu-%d", device);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

CUresult cuDeviceGetCount(int* count) {
  return initialised(Call::cuDeviceGetCount, [count] {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = driver().model->device_count();
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return on_device(Call::cuDeviceGet, ordinal, [=] {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return on_device(Call::cuDeviceGetName, device, [=] {
    if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, static_cast<std::size_t>(length), "%s",
                  driver().options.name.value_or(driver().model->profile().name).c_str());
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid(CUuuid* out, CUdevice device) {
  return on_device(Call::cuDeviceGetUuid, device, [=] { return uuid(out, device); });
}

CUresult cuDeviceGetUuid_v2(CUuuid* out, CUdevice device) {
  return on_device(Call::cuDeviceGetUuid_v2, device, [=] { return uuid(out, device); });
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return on_device(Call::cuDeviceTotalMem_v2, device, [=] {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *bytes = driver().model->profile().capacity_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  return on_device(Call::cuDeviceGetAttribute, device, [=] {
    if (value == nullptr || which <= 0 || which >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    *value = attribute(which, device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  return on_device(Call::cuDeviceComputeCapability, device, [=] {
    if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    *minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetPCIBusId(char* out, int length, CUdevice device) {
  return on_device(Call::cuDeviceGetPCIBusId, device, [=] {
    if (out == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(out, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  return initialised(Call::cuDeviceGetByPCIBusId, [=] {
    unsigned domain = 0;
    unsigned bus = 0;
    if (device == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (std::sscanf(id, "%x:%x:", &domain, &bus) != 2) return CUDA_ERROR_INVALID_VALUE;
    const int ordinal = static_cast<int>(bus) - 1;
    if (domain != 0 || !device_exists(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceCanAccessPeer(int* can_access, CUdevice device, CUdevice peer) {
  return on_device(Call::cuDeviceCanAccessPeer, device, [=] {
    if (can_access == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can_access = device != peer;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute which, CUdevice source, CUdevice destination) {
  return on_device(Call::cuDeviceGetP2PAttribute, source, [=] {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(destination) || source == destination) return CUDA_ERROR_INVALID_DEVICE;
    *value = which == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
