// The driver calls that the library itself makes, as function pointers: the real driver, the simulated one or a test's
// fakes fill them.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstdint>
#include <string_view>

namespace hmshim::uvm {

using SimgpuNowNs = std::uint64_t (*)();
using SimgpuHostAvailableBytes = std::uint64_t (*)();

using SimgpuRegisterAgent = unsigned (*)(const char* name);
using SimgpuWithAgent = void (*)(unsigned agent);
using SimgpuWatch = void (*)(const void* memory, const void* seen, std::size_t bytes, unsigned long long deadline_ns);
using SimgpuDo = void (*)();
using SimgpuForetell = void (*)(unsigned long long* last_launch_ns, double* h2d_bytes_per_s, double* d2h_bytes_per_s);

struct DriverApi {
#define DRIVER_CALL(member, type, symbol, need) type member = nullptr;
#include "uvm/driver_api.def"
#undef DRIVER_CALL

  // The clock of everything the library measures, in ns; only differences are meaningful. Virtual on the simulated GPU,
  // else CLOCK_MONOTONIC.
  [[nodiscard]] std::uint64_t now_ns() const noexcept;
};

// A device, or the host for CU_DEVICE_CPU, as the driver's calls since CUDA 12.2 name it.
[[nodiscard]] constexpr CUmemLocation location_of(CUdevice target) noexcept {
  return target == CU_DEVICE_CPU ? CUmemLocation{CU_MEM_LOCATION_TYPE_HOST, 0}
                                 : CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, target};
}

// Whether work in the stream may be recorded instead of run. An error (the legacy stream while a blocking stream
// captures: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) means hands off as well.
[[nodiscard]] inline bool may_be_capturing(const DriverApi& api, CUstream stream) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return api.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// The address of a driver symbol, null where the driver has none. It must be the driver's own, not one of our wrappers.
using Resolver = void* (*)(const char* symbol);

// Fills every row. The name of the first required call that is missing; empty when there is none.
[[nodiscard]] std::string_view resolve(DriverApi& api, Resolver resolver) noexcept;

}  // namespace hmshim::uvm
