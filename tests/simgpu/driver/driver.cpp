#include "tests/simgpu/driver/driver.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "tests/simgpu/driver/errors.hpp"
#include "tests/simgpu/driver/instruments.hpp"
#include "tests/simgpu/driver/lookup.hpp"
#include "tests/simgpu/model/profile.hpp"
#include "tests/simgpu/simgpu.h"

namespace hmshim::simgpu {
namespace {

enum class State : std::uint8_t { Fresh, Ready, NoDevice, Forked };

// Never destroyed: guests call from exit handlers that run after this library's.
Driver* g_driver = nullptr;
std::atomic<State> g_state{State::Fresh};
std::mutex g_init_mutex;

void load_kernel_library(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw OptionError("SIMGPU_KERNELS: " + std::string(dlerror()));
  auto* enter = reinterpret_cast<void (*)()>(dlsym(library, "simgpu_kernels"));
  if (enter == nullptr) throw OptionError("SIMGPU_KERNELS: " + path + " does not export void simgpu_kernels(void)");
  enter();
}

std::unique_ptr<Driver> make_driver() {
  auto made = std::make_unique<Driver>();
  made->options = read_options();
  if (made->options.devices == 0) return made;
  Options options;
  options.profile = load_profile(made->options.profile_path);
  options.device_count = made->options.devices;
  options.capacity_bytes = made->options.capacity_bytes;
  options.host_ram_bytes = made->options.host_ram_bytes;
  made->model = std::make_unique<Model>(std::move(options));
  for (int device = 0; device < made->options.devices; ++device) {
    made->primaries.push_back({});
    const CUmemoryPool pool = made->pools.create();
    Pool& defaults = *made->pools.find(pool);
    defaults.device = device;
    defaults.is_default = true;
    defaults.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    made->default_pools.push_back(pool);
    made->current_pools.push_back(pool);
  }
  return made;
}

CUresult initialise() {
  const std::lock_guard lock(g_init_mutex);
  const State state = g_state.load(std::memory_order_relaxed);
  if (state == State::Ready) return CUDA_SUCCESS;
  if (state == State::NoDevice) return CUDA_ERROR_NO_DEVICE;
  if (state == State::Forked) return CUDA_ERROR_NOT_INITIALIZED;
  try {
    g_driver = make_driver().release();
    for (const std::string& path : g_driver->options.kernel_libraries) load_kernel_library(path);
    start_instruments(g_driver->options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simgpu: %s\n", error.what());
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  // A context does not survive fork: the child's calls fail, as with the real driver.
  pthread_atfork(nullptr, nullptr, [] { g_state.store(State::Forked, std::memory_order_relaxed); });
  g_state.store(g_driver->model == nullptr ? State::NoDevice : State::Ready, std::memory_order_release);
  return g_driver->model == nullptr ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

}  // namespace

Driver& driver() noexcept { return *g_driver; }

bool is_ready() noexcept { return g_state.load(std::memory_order_acquire) == State::Ready; }

CUresult readiness() noexcept { return is_ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

CUresult result_of_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simgpu: internal error: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "simgpu: internal error\n");
  }
  return CUDA_ERROR_UNKNOWN;
}

Thread& thread() noexcept {
  // That of the main thread outlives the thread's own destructors: exit handlers and static ones still call.
  static thread_local Thread* current = nullptr;
  if (current == nullptr) {
    current = new Thread;
    if (gettid() != getpid()) {
      static thread_local std::unique_ptr<Thread> owner;
      owner.reset(current);
    }
  }
  return *current;
}

CUresult to_result(Status status) noexcept {
  switch (status) {
    case Status::kOk:
      return CUDA_SUCCESS;
    case Status::kNotReady:
      return CUDA_ERROR_NOT_READY;
    case Status::kInvalidValue:
      return CUDA_ERROR_INVALID_VALUE;
    case Status::kInvalidHandle:
      return CUDA_ERROR_INVALID_HANDLE;
    case Status::kOutOfMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case Status::kIllegalAddress:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    // What the user of a real driver sees when fault service runs out of memory is not known; the context is lost.
    case Status::kFaultOutOfMemory:
      return CUDA_ERROR_LAUNCH_FAILED;
    case Status::kNotPermitted:
      return CUDA_ERROR_NOT_PERMITTED;
  }
  return CUDA_ERROR_UNKNOWN;
}

bool device_exists(CUdevice device) noexcept { return device >= 0 && device < driver().model->device_count(); }

CUresult current_context(Context** context, CUcontext* handle) noexcept {
  const Thread& current = thread();
  if (current.stack.empty() || current.stack.back() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *context = driver().contexts.find(current.stack.back());
  if (*context == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (handle != nullptr) *handle = current.stack.back();
  return CUDA_SUCCESS;
}

std::optional<std::pair<std::uint64_t, Memory>> Driver::find_memory(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  auto next = memory.upper_bound(address);
  if (next == memory.begin()) return std::nullopt;
  --next;
  if (address - next->first >= next->second.bytes) return std::nullopt;
  return *next;
}

}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = initialise();
  return anytime(Call::cuInit, [result] { return result; });
}

CUresult cuDriverGetVersion(int* version) {
  return anytime(Call::cuDriverGetVersion, [version] {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = driver_version();
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
