// cuGetProcAddress. Neither instrumented nor dependent on cuInit: runtimes resolve everything before the first call.
#include "tests/simgpu/driver/lookup.hpp"

#include "tests/simgpu/driver/cuda_api.hpp"

namespace {

using hmshim::simgpu::LookupStatus;

CUresult get(const char* symbol, void** address, int version, cuuint64_t flags,
             CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t kFlags = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (symbol == nullptr || address == nullptr || (flags & ~kFlags) != 0 || flags == kFlags)
    return CUDA_ERROR_INVALID_VALUE;
  if (version > CUDA_VERSION) return CUDA_ERROR_INVALID_VALUE;
  if (*symbol == '\0') return CUDA_ERROR_INVALID_VALUE;
  const auto found = hmshim::simgpu::look_up(symbol, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  *address = found.address;
  if (status != nullptr) *status = static_cast<CUdriverProcAddressQueryResult>(found.status);
  return CUDA_SUCCESS;  // with a null pointer where nothing was found, as cuda.h documents
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress(const char* symbol, void** address, int version, cuuint64_t flags) {
  return get(symbol, address, version, flags, nullptr);
}

CUresult cuGetProcAddress_v2(const char* symbol, void** address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  return get(symbol, address, version, flags, status);
}

}  // extern "C"
