// Modules, libraries, functions and kernels.
#pragma once

#include "tests/simgpu/driver/driver.hpp"
#include "tests/simgpu/driver/work.hpp"

namespace hmshim::simgpu {

// Frees a module's globals and functions; its code stays for launches in flight.
void unload_module(CUmodule module);

// Checks a launch of `function` (a CUfunction or a CUkernel) in `context` and fills in the rest of `work`, whose
// dimensions are set. CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE.
[[nodiscard]] CUresult prepare_kernel(CUfunction function, CUcontext context, void** parameters, void** extra,
                                      KernelWork& work);

}  // namespace hmshim::simgpu
