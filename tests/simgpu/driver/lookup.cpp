// cuGetProcAddress. Neither instrumented nor dependent on cuInit: runtimes resolve everything before the first call.
#include "tests/simgpu/driver/lookup.hpp"

#include <cstdlib>

#include "tests/simgpu/driver/cuda_api.hpp"

namespace {

using hmshim::simgpu::LookupStatus;

CUresult get(const char* symbol, void** address, int version, cuuint64_t flags,
             CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t kFlags = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (symbol == nullptr || address == nullptr || (flags & ~kFlags) != 0 || flags == kFlags)
    return CUDA_ERROR_INVALID_VALUE;
  if (version > hmshim::simgpu::driver_version()) return CUDA_ERROR_INVALID_VALUE;
  if (*symbol == '\0') return CUDA_ERROR_INVALID_VALUE;
  const auto found = hmshim::simgpu::look_up(symbol, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  *address = found.address;
  if (status != nullptr) *status = static_cast<CUdriverProcAddressQueryResult>(found.status);
  return CUDA_SUCCESS;  // with a null pointer where nothing was found, as cuda.h documents
}

}  // namespace

int hmshim::simgpu::driver_version() noexcept {
  static const int version = [] {
    const char* given = std::getenv("SIMGPU_DRIVER_VERSION");
    if (given == nullptr || *given == '\0') return CUDA_VERSION;
    char* end = nullptr;
    const long number = std::strtol(given, &end, 10);
    return *end == '\0' && number >= 11030 && number <= CUDA_VERSION ? static_cast<int>(number) : 0;
  }();
  return version;
}

extern "C" {

CUresult cuGetProcAddress(const char* symbol, void** address, int version, cuuint64_t flags) {
  return get(symbol, address, version, flags, nullptr);
}

CUresult cuGetProcAddress_v2(const char* symbol, void** address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  return get(symbol, address, version, flags, status);
}

}  // extern "C"
