// What nvcc's start-up code registers: images, kernels and variables by the address of their host shadow.
#pragma once

#include <cstddef>

#include "tests/simgpu/runtime/runtime.hpp"

namespace hmshim::simgpu::runtime {

// The kernel of a host stub, its image loaded on first need. A pointer that no image registered is taken for a
// cudaKernel_t, as cudaLaunchKernel documents. cudaErrorInvalidDeviceFunction, or why the image did not load.
[[nodiscard]] cudaError_t find_kernel(const void* function, CUkernel* kernel);
// Address and size of a __device__ or __constant__ variable on the current device: cudaErrorInvalidSymbol.
[[nodiscard]] cudaError_t find_variable(const void* symbol, CUdeviceptr* address, std::size_t* bytes);

}  // namespace hmshim::simgpu::runtime
