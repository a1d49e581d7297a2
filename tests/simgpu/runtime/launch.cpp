// Kernel launches, kernel attributes and occupancy.
#include <algorithm>
#include <vector>

#include "tests/simgpu/runtime/registration.hpp"
#include "tests/simgpu/runtime/runtime.hpp"

namespace {

using namespace hmshim::simgpu::runtime;

// CUDA 13's runtime passes CUkernel handles where older ones passed a CUfunction.
CUfunction as_function(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

cudaError_t launch(const Driver& cu, CUkernel kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, void** arguments) {
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  return from(cu.cuLaunchKernel_(as_function(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                 static_cast<unsigned>(shared_bytes), stream, arguments, nullptr));
}

cudaError_t launch_symbol(const Driver& cu, const void* function, dim3 grid, dim3 block, std::size_t shared_bytes,
                          cudaStream_t stream, void** arguments) {
  CUkernel kernel = nullptr;
  const cudaError_t error = find_kernel(function, &kernel);
  return error == cudaSuccess ? launch(cu, kernel, grid, block, shared_bytes, stream, arguments) : error;
}

cudaError_t launch_cooperative(const Driver& cu, const void* function, dim3 grid, dim3 block, std::size_t shared_bytes,
                               cudaStream_t stream, void** arguments) {
  CUkernel kernel = nullptr;
  if (const cudaError_t error = find_kernel(function, &kernel); error != cudaSuccess) return error;
  return from(cu.cuLaunchCooperativeKernel_(as_function(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                            static_cast<unsigned>(shared_bytes), stream, arguments));
}

cudaError_t launch_configured(const Driver& cu, const cudaLaunchConfig_t* config, const void* function,
                              void** arguments) {
  if (config == nullptr) return cudaErrorInvalidValue;
  CUkernel kernel = nullptr;
  if (const cudaError_t error = find_kernel(function, &kernel); error != cudaSuccess) return error;
  CUlaunchConfig driver_config{};
  driver_config.gridDimX = config->gridDim.x;
  driver_config.gridDimY = config->gridDim.y;
  driver_config.gridDimZ = config->gridDim.z;
  driver_config.blockDimX = config->blockDim.x;
  driver_config.blockDimY = config->blockDim.y;
  driver_config.blockDimZ = config->blockDim.z;
  driver_config.sharedMemBytes = static_cast<unsigned>(config->dynamicSmemBytes);
  driver_config.hStream = config->stream;
  // cudaLaunchAttribute is CUlaunchAttribute under another name (driver_types.h).
  static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute));
  driver_config.attrs = reinterpret_cast<CUlaunchAttribute*>(config->attrs);
  driver_config.numAttrs = config->numAttrs;
  return from(cu.cuLaunchKernelEx_(&driver_config, as_function(kernel), arguments, nullptr));
}

int attribute(const Driver& cu, CUkernel kernel, CUfunction_attribute which) {
  int value = 0;
  return cu.cuKernelGetAttribute_(&value, which, kernel, current_device()) == CUDA_SUCCESS ? value : 0;
}

}  // namespace

SIMGPU_RUNTIME_BOTH(
    __cudaLaunchKernel, _ptsz,
    (cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes, cudaStream_t stream),
    { return launch(cu, reinterpret_cast<CUkernel>(kernel), grid, block, shared_bytes, stream, arguments); })
SIMGPU_RUNTIME_BOTH(cudaLaunchKernel, _ptsz,
                    (const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                     cudaStream_t stream),
                    { return launch_symbol(cu, function, grid, block, shared_bytes, stream, arguments); })
SIMGPU_RUNTIME_BOTH(cudaLaunchCooperativeKernel, _ptsz,
                    (const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                     cudaStream_t stream),
                    { return launch_cooperative(cu, function, grid, block, shared_bytes, stream, arguments); })
SIMGPU_RUNTIME_BOTH(cudaLaunchKernelExC, _ptsz,
                    (const cudaLaunchConfig_t* config, const void* function, void** arguments),
                    { return launch_configured(cu, config, function, arguments); })
SIMGPU_RUNTIME_BOTH(cudaLaunchHostFunc, _ptsz, (cudaStream_t stream, cudaHostFn_t function, void* data),
                    { return cu.cuLaunchHostFunc_(stream, function, data); })

extern "C" {

cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return run([&](const Driver&) {
    CUkernel found = nullptr;
    if (kernel == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = find_kernel(function, &found);
    *kernel = reinterpret_cast<cudaKernel_t>(found);
    return error;
  });
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  return run([&](const Driver& cu) {
    CUkernel kernel = nullptr;
    if (function == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t error = find_kernel(symbol, &kernel); error != cudaSuccess) return error;
    return from(cu.cuKernelGetFunction_(reinterpret_cast<CUfunction*>(function), kernel));
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* function) {
  return run([&](const Driver& cu) {
    CUkernel kernel = nullptr;
    if (out == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t error = find_kernel(function, &kernel); error != cudaSuccess) return error;
    *out = {};
    out->sharedSizeBytes = static_cast<std::size_t>(attribute(cu, kernel, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
    out->constSizeBytes = static_cast<std::size_t>(attribute(cu, kernel, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES));
    out->localSizeBytes = static_cast<std::size_t>(attribute(cu, kernel, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
    out->maxThreadsPerBlock = attribute(cu, kernel, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    out->numRegs = attribute(cu, kernel, CU_FUNC_ATTRIBUTE_NUM_REGS);
    out->ptxVersion = attribute(cu, kernel, CU_FUNC_ATTRIBUTE_PTX_VERSION);
    out->binaryVersion = attribute(cu, kernel, CU_FUNC_ATTRIBUTE_BINARY_VERSION);
    out->maxDynamicSharedSizeBytes = attribute(cu, kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    out->preferredShmemCarveout = attribute(cu, kernel, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute which, int value) {
  return run([&](const Driver& cu) {
    CUkernel kernel = nullptr;
    if (const cudaError_t error = find_kernel(function, &kernel); error != cudaSuccess) return error;
    return from(cu.cuKernelSetAttribute_(static_cast<CUfunction_attribute>(which), value, kernel, current_device()));
  });
}

cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache config) {
  return run([&](const Driver& cu) {
    CUkernel kernel = nullptr;
    if (const cudaError_t error = find_kernel(function, &kernel); error != cudaSuccess) return error;
    return from(cu.cuKernelSetCacheConfig_(kernel, static_cast<CUfunc_cache>(config), current_device()));
  });
}

cudaError_t cudaFuncGetName(const char** name, const void* function) {
  return run([&](const Driver& cu) {
    CUkernel kernel = nullptr;
    if (const cudaError_t error = find_kernel(function, &kernel); error != cudaSuccess) return error;
    return from(cu.cuKernelGetName_(name, kernel));
  });
}

cudaError_t cudaFuncGetParamInfo(const void* function, size_t index, size_t* offset, size_t* bytes) {
  return run([&](const Driver& cu) {
    CUkernel kernel = nullptr;
    if (const cudaError_t error = find_kernel(function, &kernel); error != cudaSuccess) return error;
    return from(cu.cuKernelGetParamInfo_(kernel, index, offset, bytes));
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int block_size,
                                                                   size_t shared_bytes, unsigned flags) {
  return run([&](const Driver& cu) {
    CUkernel kernel = nullptr;
    if (const cudaError_t error = find_kernel(function, &kernel); error != cudaSuccess) return error;
    return from(cu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags_(blocks, as_function(kernel), block_size,
                                                                         shared_bytes, flags));
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_size,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes, 0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* function, int blocks, int block_size) {
  return run([&](const Driver& cu) {
    CUkernel kernel = nullptr;
    if (const cudaError_t error = find_kernel(function, &kernel); error != cudaSuccess) return error;
    return from(cu.cuOccupancyAvailableDynamicSMemPerBlock_(bytes, as_function(kernel), blocks, block_size));
  });
}

}  // extern "C"
