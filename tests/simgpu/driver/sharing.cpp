// Handles for other processes. The simulated GPU lives in one process: a handle can be had and closed, as far as the
// rules go that the driver checks when it is made.
#include <cstring>

#include "tests/simgpu/driver/driver.hpp"

using namespace hmshim::simgpu;

extern "C" {

// Only memory of cuMemAlloc (CUDA driver API, cuIpcGetMemHandle); managed and pool memory are refused.
CUresult cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
  return in_context(Call::cuIpcGetMemHandle, [=](const Context&) {
    const auto found = driver().find_memory(address);
    if (out == nullptr || !found || found->second.origin != MemoryOrigin::Device) return CUDA_ERROR_INVALID_VALUE;
    *out = {};
    std::memcpy(out->reserved, &found->first, sizeof found->first);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
