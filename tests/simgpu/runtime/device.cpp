// Devices, versions, errors and the way to the driver's own entry points.
#include <algorithm>
#include <iterator>

#include "tests/simgpu/runtime/runtime.hpp"

namespace {

using namespace hmshim::simgpu::runtime;

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
#define SIMGPU_ERROR(driver_name, runtime_name, text) {runtime_name, #runtime_name, text},
#include "tests/simgpu/errors.def"
#undef SIMGPU_ERROR
    // What only the runtime says.
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
};

const ErrorText* find(cudaError_t code) {
  const auto* found = std::ranges::find(kErrors, code, &ErrorText::code);
  return found == std::end(kErrors) ? nullptr : found;
}

int attribute(const Driver& cu, CUdevice_attribute which, int device) {
  int value = 0;
  return cu.cuDeviceGetAttribute_(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

CUresult properties(const Driver& cu, cudaDeviceProp& out, int device) {
  out = {};
  if (const CUresult result = cu.cuDeviceGetName_(out.name, sizeof out.name, device); result != CUDA_SUCCESS)
    return result;
  if (const CUresult result = cu.cuDeviceTotalMem_(&out.totalGlobalMem, device); result != CUDA_SUCCESS) return result;
  if (const CUresult result = cu.cuDeviceGetUuid_(&out.uuid, device); result != CUDA_SUCCESS) return result;
  const auto get = [&](CUdevice_attribute which) { return attribute(cu, which, device); };
  const auto get_bytes = [&](CUdevice_attribute which) { return static_cast<std::size_t>(get(which)); };
  out.sharedMemPerBlock = get_bytes(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  out.sharedMemPerBlockOptin = get_bytes(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  out.sharedMemPerMultiprocessor = get_bytes(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  out.reservedSharedMemPerBlock = get_bytes(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
  out.regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  out.regsPerMultiprocessor = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  out.warpSize = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  out.memPitch = get_bytes(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  out.maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  out.maxThreadsDim[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  out.maxThreadsDim[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  out.maxThreadsDim[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  out.maxGridSize[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  out.maxGridSize[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  out.maxGridSize[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  out.totalConstMem = get_bytes(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  out.major = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  out.minor = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  out.textureAlignment = get_bytes(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  out.texturePitchAlignment = get_bytes(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT);
  out.surfaceAlignment = get_bytes(CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT);
  out.multiProcessorCount = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  out.maxThreadsPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  out.maxBlocksPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  out.integrated = get(CU_DEVICE_ATTRIBUTE_INTEGRATED);
  out.canMapHostMemory = get(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
  out.concurrentKernels = get(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
  out.ECCEnabled = get(CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
  out.pciBusID = get(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
  out.pciDeviceID = get(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
  out.pciDomainID = get(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
  out.asyncEngineCount = get(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
  out.unifiedAddressing = get(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
  out.memoryBusWidth = get(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  out.l2CacheSize = get(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  out.persistingL2CacheMaxSize = get(CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE);
  out.streamPrioritiesSupported = get(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
  out.globalL1CacheSupported = get(CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED);
  out.localL1CacheSupported = get(CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED);
  out.managedMemory = get(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
  out.hostNativeAtomicSupported = get(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED);
  out.pageableMemoryAccess = get(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
  out.concurrentManagedAccess = get(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
  out.computePreemptionSupported = get(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED);
  out.canUseHostPointerForRegisteredMem = get(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
  out.cooperativeLaunch = get(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
  out.pageableMemoryAccessUsesHostPageTables = get(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
  out.directManagedMemAccessFromHost = get(CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
  out.hostRegisterSupported = get(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
  out.memoryPoolsSupported = get(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  out.clusterLaunch = get(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
  out.unifiedFunctionPointers = get(CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS);
  out.deviceNumaId = get(CU_DEVICE_ATTRIBUTE_NUMA_ID);
  out.hostNumaId = get(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
  return CUDA_SUCCESS;
}

// Legal before any device is chosen: needs the driver, not a context.
template <class Body>
cudaError_t without_context(Body&& body) {
  cudaError_t error = load_driver();
  if (error == cudaSuccess) error = static_cast<cudaError_t>(body(driver()));
  return error == cudaSuccess ? error : remember(error);
}

cudaError_t entry_point(const char* symbol, void** function, unsigned version, unsigned long long flags,
                        unsigned long long default_flags, cudaDriverEntryPointQueryResult* status) {
  return without_context([&](const Driver&) {
    if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUdriverProcAddressQueryResult found{};
    const CUresult result = driver_lookup()(symbol, function, static_cast<int>(version),
                                            flags == cudaEnableDefault ? default_flags : flags, &found);
    if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
    return result;
  });
}

}  // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* found = find(error);
  return found == nullptr ? "unrecognized error code" : found->name;
}
const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* found = find(error);
  return found == nullptr ? "unrecognized error code" : found->text;
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (version == nullptr) return remember(cudaErrorInvalidValue);
  *version = 0;  // "no driver is installed", a success
  const cudaError_t error = load_driver();
  if (error == cudaErrorInsufficientDriver) return cudaSuccess;
  return from(driver().cuDriverGetVersion_(version));
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return remember(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  return without_context([=](const Driver& cu) {
    if (count != nullptr) *count = 0;
    return cu.cuDeviceGetCount_(count);
  });
}
cudaError_t cudaSetDevice(int device) {
  const cudaError_t error = set_device(device);
  return error == cudaSuccess ? error : remember(error);
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return cudaSetDevice(device); }
cudaError_t cudaGetDevice(int* device) {
  return without_context([=](const Driver&) {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = current_device();
    return cudaSuccess;
  });
}
cudaError_t cudaSetDeviceFlags(unsigned flags) {
  return without_context([=](const Driver& cu) { return cu.cuDevicePrimaryCtxSetFlags_(current_device(), flags); });
}
cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  return without_context([=](const Driver& cu) {
    int is_active = 0;
    return cu.cuDevicePrimaryCtxGetState_(current_device(), flags, &is_active);
  });
}
cudaError_t cudaDeviceReset(void) {
  return without_context([](const Driver&) { return reset_device(); });
}
cudaError_t cudaDeviceSynchronize(void) {
  return run([](const Driver& cu) { return cu.cuCtxSynchronize_(nullptr); });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  return without_context(
      [=](const Driver& cu) { return out == nullptr ? CUDA_ERROR_INVALID_VALUE : properties(cu, *out, device); });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  // cudaDeviceAttr has the driver's numbers (driver_types.h).
  return without_context([=](const Driver& cu) {
    return cu.cuDeviceGetAttribute_(value, static_cast<CUdevice_attribute>(which), device);
  });
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return without_context([=](const Driver& cu) { return cu.cuDeviceGetPCIBusId_(id, length, device); });
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
  return without_context([=](const Driver& cu) { return cu.cuDeviceGetByPCIBusId_(device, id); });
}
cudaError_t cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
  return without_context([=](const Driver& cu) { return cu.cuDeviceCanAccessPeer_(can_access, device, peer); });
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr which, int source, int destination) {
  return without_context([=](const Driver& cu) {
    return cu.cuDeviceGetP2PAttribute_(value, static_cast<CUdevice_P2PAttribute>(which), source, destination);
  });
}
// Every simulated device reaches every other's memory at all times.
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return run([=](const Driver& cu) {
    int can_access = 0;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = cu.cuDeviceCanAccessPeer_(&can_access, current_device(), peer); result != CUDA_SUCCESS)
      return result;
    return can_access != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  });
}
cudaError_t cudaDeviceDisablePeerAccess(int) {
  return run([](const Driver&) { return cudaSuccess; });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return run([=](const Driver& cu) { return cu.cuCtxGetStreamPriorityRange_(least, greatest); });
}
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  return run([=](const Driver& cu) { return cu.cuCtxGetLimit_(value, static_cast<CUlimit>(limit)); });
}
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return run([=](const Driver& cu) { return cu.cuCtxSetLimit_(static_cast<CUlimit>(limit), value); });
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return entry_point(symbol, function, CUDART_VERSION, flags, cudaEnableLegacyStream, status);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return entry_point(symbol, function, version, flags, cudaEnableLegacyStream, status);
}

cudaError_t cudaProfilerStart(void) {
  return run([](const Driver& cu) { return cu.cuProfilerStart_(); });
}
cudaError_t cudaProfilerStop(void) {
  return run([](const Driver& cu) { return cu.cuProfilerStop_(); });
}

}  // extern "C"

SIMGPU_RUNTIME_EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function,
                                                               unsigned long long flags,
                                                               cudaDriverEntryPointQueryResult* status) {
  return entry_point(symbol, function, CUDART_VERSION, flags, cudaEnablePerThreadDefaultStream, status);
}
SIMGPU_RUNTIME_EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char* symbol, void** function,
                                                                        unsigned version, unsigned long long flags,
                                                                        cudaDriverEntryPointQueryResult* status) {
  return entry_point(symbol, function, version, flags, cudaEnablePerThreadDefaultStream, status);
}
