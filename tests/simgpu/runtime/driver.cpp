#include <dlfcn.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/simgpu/runtime/runtime.hpp"

namespace hmshim::simgpu::runtime {
namespace {

struct State {
  Driver legacy;
  Driver per_thread;
  GetProcAddress get = nullptr;
  void (*note_tensor)(std::uint64_t, std::uint64_t) = nullptr;  // of the stand-in driver only
  std::once_flag once;
  cudaError_t load_error = cudaErrorUnknown;
  std::mutex mutex;
  std::vector<CUcontext> primaries;  // retained, by device
};

// Never destroyed: guests call from exit handlers.
State& state() {
  static auto* const made = new State;
  return *made;
}

struct Thread {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
};
Thread& thread() {
  static thread_local Thread current;
  return current;
}

// Takes the place of what the driver lacks; ignores any arguments.
CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

template <class Function>
void resolve(GetProcAddress get, const char* base, int version, cuuint64_t flags, Function& function) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (get(base, &address, version, flags, &status) != CUDA_SUCCESS || address == nullptr) {
    address = reinterpret_cast<void*>(&unsupported);
  }
  function = reinterpret_cast<Function>(address);
}

// The protocol of NVIDIA's runtime: one dlsym, then everything through the function it gave, beginning with itself.
cudaError_t load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return cudaErrorInsufficientDriver;
  auto get = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) return cudaErrorInsufficientDriver;
  state().note_tensor = reinterpret_cast<decltype(State::note_tensor)>(dlsym(library, "simgpu_note_tensor"));
  void* own = nullptr;
  for (const int version : {11030, 12000}) {
    if (get("cuGetProcAddress", &own, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr) != CUDA_SUCCESS) own = nullptr;
  }
  if (own != nullptr) get = reinterpret_cast<GetProcAddress>(own);
  state().get = get;
  Driver& legacy = state().legacy;
  Driver& per_thread = state().per_thread;
#define SIMGPU_DRIVER_CALL(base, version, per_thread_version)                                                   \
  resolve(get, #base, version, CU_GET_PROC_ADDRESS_DEFAULT, legacy.base##_);                                    \
  if (per_thread_version != 0) {                                                                                \
    resolve(get, #base, per_thread_version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, per_thread.base##_); \
  } else {                                                                                                      \
    per_thread.base##_ = legacy.base##_;                                                                        \
  }
#include "tests/simgpu/runtime/driver_calls.def"
#undef SIMGPU_DRIVER_CALL
  if (const CUresult result = legacy.cuInit_(0); result != CUDA_SUCCESS) return from(result);
  int count = 0;
  if (const CUresult result = legacy.cuDeviceGetCount_(&count); result != CUDA_SUCCESS) return from(result);
  state().primaries.resize(static_cast<std::size_t>(count));
  return cudaSuccess;
}

cudaError_t bind(int device) noexcept {
  const std::lock_guard lock(state().mutex);
  if (device < 0 || static_cast<std::size_t>(device) >= state().primaries.size()) return cudaErrorInvalidDevice;
  CUcontext& primary = state().primaries[static_cast<std::size_t>(device)];
  if (primary == nullptr) {
    if (const CUresult result = state().legacy.cuDevicePrimaryCtxRetain_(&primary, device); result != CUDA_SUCCESS) {
      primary = nullptr;
      return from(result);
    }
  }
  return from(state().legacy.cuCtxSetCurrent_(primary));
}

}  // namespace

cudaError_t load_driver() noexcept {
  std::call_once(state().once, [] { state().load_error = load(); });
  return state().load_error;
}

const Driver& driver(Flavour flavour) noexcept {
  return flavour == Flavour::Legacy ? state().legacy : state().per_thread;
}

GetProcAddress driver_lookup() noexcept { return state().get; }

void note_tensor(CUdeviceptr address, std::uint64_t bytes) noexcept {
  if (state().note_tensor != nullptr && address != 0) state().note_tensor(address, bytes);
}

cudaError_t make_ready() noexcept {
  if (const cudaError_t error = load_driver(); error != cudaSuccess) return error;
  CUcontext current = nullptr;
  if (const CUresult result = state().legacy.cuCtxGetCurrent_(&current); result != CUDA_SUCCESS) return from(result);
  return current != nullptr ? cudaSuccess : bind(thread().device);
}

int current_device() noexcept {
  CUdevice device = thread().device;
  CUcontext current = nullptr;
  if (load_driver() == cudaSuccess && state().legacy.cuCtxGetCurrent_(&current) == CUDA_SUCCESS && current != nullptr) {
    if (state().legacy.cuCtxGetDevice_(&device, nullptr) != CUDA_SUCCESS) device = thread().device;
  }
  return device;
}

cudaError_t set_device(int device) noexcept {
  if (const cudaError_t error = load_driver(); error != cudaSuccess) return error;
  const cudaError_t error = bind(device);
  if (error == cudaSuccess) thread().device = device;
  return error;
}

cudaError_t reset_device() noexcept {
  const int device = current_device();
  const std::lock_guard lock(state().mutex);
  CUcontext& primary = state().primaries[static_cast<std::size_t>(device)];
  if (primary == nullptr) return cudaSuccess;
  primary = nullptr;
  if (const CUresult result = state().legacy.cuDevicePrimaryCtxReset_(device); result != CUDA_SUCCESS)
    return from(result);
  if (const CUresult result = state().legacy.cuDevicePrimaryCtxRelease_(device); result != CUDA_SUCCESS)
    return from(result);
  return from(state().legacy.cuCtxSetCurrent_(nullptr));
}

cudaError_t remember(cudaError_t error) noexcept {
  // Not ready is an answer, not an error to keep.
  if (error != cudaErrorNotReady) thread().last_error = error;
  return error;
}

}  // namespace hmshim::simgpu::runtime

using namespace hmshim::simgpu::runtime;

extern "C" {

cudaError_t cudaGetLastError(void) { return std::exchange(thread().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError(void) { return thread().last_error; }

}  // extern "C"
