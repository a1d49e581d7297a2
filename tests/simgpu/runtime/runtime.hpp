// The stand-in runtime's state: the driver's entry points, the calling thread's device and last error.
#pragma once

#pragma GCC visibility push(default)
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

#include <cuda.h>
#include <cudaProfiler.h>
#include <cudaProfilerTypedefs.h>
#include <cudaTypedefs.h>

#include <cstdint>

#define SIMGPU_RUNTIME_EXPORT extern "C" __attribute__((visibility("default")))

namespace hmshim::simgpu::runtime {

// The driver's functions, once per flavour of the default stream. What a driver lacks answers CUDA_ERROR_NOT_SUPPORTED.
struct Driver {
#define SIMGPU_DRIVER_CALL(base, version, per_thread_version) PFN_##base##_v##version base##_;
#include "tests/simgpu/runtime/driver_calls.def"
#undef SIMGPU_DRIVER_CALL
};

enum class Flavour : std::uint8_t { Legacy, PerThread };

// Loads libcuda.so.1 and resolves everything at the first call of the process; SUCCESS once cuInit has succeeded.
[[nodiscard]] cudaError_t load_driver() noexcept;
// Valid after load_driver() has resolved.
[[nodiscard]] const Driver& driver(Flavour flavour = Flavour::Legacy) noexcept;

// The driver's own lookup, as it answered when asked for itself; null when there is no driver.
using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
[[nodiscard]] GetProcAddress driver_lookup() noexcept;

// What the guest got, or with 0 bytes gave back: the stand-in driver keeps it in mind (simgpu_note_tensor).
void note_tensor(CUdeviceptr address, std::uint64_t bytes) noexcept;

// load_driver(), then the calling thread's device gets its primary context, unless some context is current already.
[[nodiscard]] cudaError_t make_ready() noexcept;
// The calling thread's device: that of the current context, else what cudaSetDevice chose.
[[nodiscard]] int current_device() noexcept;
[[nodiscard]] cudaError_t set_device(int device) noexcept;
[[nodiscard]] cudaError_t reset_device() noexcept;

// Stores an error for cudaGetLastError and returns it.
cudaError_t remember(cudaError_t error) noexcept;

[[nodiscard]] inline cudaError_t from(CUresult result) noexcept { return static_cast<cudaError_t>(result); }
[[nodiscard]] inline CUdeviceptr address(const void* pointer) noexcept {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

// A call that needs a device. `body` gets the driver's functions in the flavour and returns a CUresult or a
// cudaError_t.
template <class Body>
cudaError_t run(Flavour flavour, Body&& body) noexcept {
  cudaError_t error = make_ready();
  if (error == cudaSuccess) error = static_cast<cudaError_t>(body(driver(flavour)));
  return error == cudaSuccess ? error : remember(error);
}
template <class Body>
cudaError_t run(Body&& body) noexcept {
  return run(Flavour::Legacy, static_cast<Body&&>(body));
}

}  // namespace hmshim::simgpu::runtime

// A function and its variant for the per-thread default stream: the body sees the driver as `cu`.
#define SIMGPU_RUNTIME_FLAVOUR(symbol, flavour, parameters, ...)             \
  SIMGPU_RUNTIME_EXPORT cudaError_t symbol parameters {                      \
    using namespace ::hmshim::simgpu::runtime;                               \
    return run(flavour, [&]([[maybe_unused]] const Driver& cu) __VA_ARGS__); \
  }
#define SIMGPU_RUNTIME_BOTH(name, suffix, parameters, ...)                                          \
  SIMGPU_RUNTIME_FLAVOUR(name, ::hmshim::simgpu::runtime::Flavour::Legacy, parameters, __VA_ARGS__) \
  SIMGPU_RUNTIME_FLAVOUR(name##suffix, ::hmshim::simgpu::runtime::Flavour::PerThread, parameters, __VA_ARGS__)
