// The simulated driver's state, and the one way into every modelled entry point.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/simgpu/driver/cuda_api.hpp"
#include "tests/simgpu/driver/handles.hpp"
#include "tests/simgpu/driver/options.hpp"
#include "tests/simgpu/driver/program.hpp"
#include "tests/simgpu/model/model.hpp"

namespace hmshim::simgpu {

// Every export, by symbol: what SIMGPU_FAIL counts and SIMGPU_LOG names.
enum class Call : std::uint16_t {
#define SIMGPU_ENTRY(base, since, flavour, symbol) symbol,
#include "tests/simgpu/driver/entries.def"
#undef SIMGPU_ENTRY
  Count,
};

struct Capture;
struct Graph;

struct Stream {
  StreamId id = 0;
  CUcontext context = nullptr;
  int device = 0;
  unsigned flags = 0;  // CU_STREAM_DEFAULT or CU_STREAM_NON_BLOCKING
  int priority = 0;
  std::uint64_t unique_id = 0;
  bool is_legacy = false;
  std::atomic<Capture*> capture{nullptr};  // while the stream captures
  std::vector<CUgraphNode> tail;           // what the next captured operation follows; guarded by Driver::mutex
};

struct Event {
  EventId id = 0;
  CUcontext context = nullptr;
  unsigned flags = 0;
  // A record inside a capture: what a stream that waits for the event joins. Guarded by Driver::mutex.
  std::uint64_t capture_id = 0;
  std::vector<CUgraphNode> captured_tail;
};

struct Context {
  int device = 0;
  unsigned flags = 0;
  bool is_primary = false;
  std::uint64_t unique_id = 0;
  Stream legacy;
  std::map<CUlimit, std::size_t> limits;  // guarded by Driver::mutex
};

struct Pool {
  int device = 0;
  bool is_default = false;
  CUmemAllocationType type = CU_MEM_ALLOCATION_TYPE_PINNED;
  CUmemLocation location{};
  std::map<CUmemPool_attribute, std::uint64_t> settings;  // what cuMemPoolSetAttribute stored
  std::uint64_t used_bytes = 0;
  std::uint64_t used_high_bytes = 0;
};

// How memory was obtained decides how it may be freed and what its attributes are.
enum class MemoryOrigin { Device, Managed, Pool, Host, Registered, Global, Graph, Mapped };

struct Memory {
  MemoryOrigin origin = MemoryOrigin::Device;
  std::uint64_t bytes = 0;
  CUcontext context = nullptr;
  int device = 0;
  CUmemoryPool pool = nullptr;
  unsigned flags = 0;  // of cuMemHostAlloc, cuMemHostRegister, cuMemAllocManaged
  std::uint64_t buffer_id = 0;
};

struct Driver {
  DriverOptions options;
  std::unique_ptr<Model> model;  // null with SIMGPU_DEVICES=0

  HandleTable<Context, CUcontext, HandleKind::Context> contexts;
  HandleTable<Stream, CUstream, HandleKind::Stream> streams;
  HandleTable<Event, CUevent, HandleKind::Event> events;
  HandleTable<Module, CUmodule, HandleKind::Module> modules;
  HandleTable<Library, CUlibrary, HandleKind::Library> libraries;
  HandleTable<Function, CUfunction, HandleKind::Function> functions;
  HandleTable<LibraryKernel, CUkernel, HandleKind::Kernel> kernels;
  HandleTable<Pool, CUmemoryPool, HandleKind::Pool> pools;

  // Guards what follows, and what other declarations say. Never held across a blocking call of the model.
  std::mutex mutex;
  std::map<std::uint64_t, Memory> memory;  // by first address
  struct Primary {
    CUcontext context = nullptr;
    unsigned references = 0;
    unsigned flags = 0;
  };
  std::vector<Primary> primaries;           // by device
  std::vector<CUmemoryPool> default_pools;  // by device
  std::vector<CUmemoryPool> current_pools;  // by device
  std::uint64_t next_id = 1;                // contexts, streams, buffers, captures: unique, never reused

  // The entry of `memory` that contains `address`. Takes the mutex.
  [[nodiscard]] std::optional<std::pair<std::uint64_t, Memory>> find_memory(std::uint64_t address);
};

// True once cuInit has succeeded and this is not a forked child.
[[nodiscard]] bool is_ready() noexcept;
// Valid after cuInit has succeeded, for ever: nothing is torn down at exit, since guests call from exit handlers.
[[nodiscard]] Driver& driver() noexcept;

// What the calling thread has current.
struct Thread {
  std::vector<CUcontext> stack;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::map<CUcontext, std::unique_ptr<Stream>> default_streams;  // CU_STREAM_PER_THREAD
};
[[nodiscard]] Thread& thread() noexcept;

[[nodiscard]] CUresult to_result(Status status) noexcept;
[[nodiscard]] bool device_exists(CUdevice device) noexcept;

// Priorities as the driver numbers them: lower is more urgent. The simulated devices do not tell them apart.
inline constexpr int kLeastPriority = 0;
inline constexpr int kGreatestPriority = -5;
// Shared memory of a block, without and with CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES raised (compute
// capability 9.0).
inline constexpr int kSharedBytes = 48 << 10;
inline constexpr int kSharedBytesOptIn = 227 << 10;

// ---- the way in ----

// Set by SIMGPU_LOG and SIMGPU_FAIL: the slow path of every call.
extern std::atomic<bool> is_instrumented;
// The error to return instead of doing the call.
[[nodiscard]] std::optional<CUresult> injected_failure(Call call);
void log_call(Call call, CUresult result);
// SUCCESS, or why no call may do anything: before cuInit, in a forked child (both CUDA_ERROR_NOT_INITIALIZED).
[[nodiscard]] CUresult readiness() noexcept;
// CUDA_SUCCESS and the current context, else CUDA_ERROR_INVALID_CONTEXT or CUDA_ERROR_CONTEXT_IS_DESTROYED.
[[nodiscard]] CUresult current_context(Context** context, CUcontext* handle = nullptr) noexcept;
// What an exception inside a call becomes.
[[nodiscard]] CUresult result_of_exception() noexcept;

// A call that needs no initialisation.
template <class Body>
CUresult anytime(Call call, Body&& body) {
  try {
    if (!is_instrumented.load(std::memory_order_relaxed)) [[likely]]
      return body();
    if (const auto failure = injected_failure(call)) {
      log_call(call, *failure);
      return *failure;
    }
    const CUresult result = body();
    log_call(call, result);
    return result;
  } catch (...) {
    return result_of_exception();
  }
}

// A call that needs cuInit but no context. Host functions may not call the driver (cuLaunchHostFunc).
template <class Body>
CUresult initialised(Call call, Body&& body) {
  return anytime(call, [&]() -> CUresult {
    if (const CUresult result = readiness(); result != CUDA_SUCCESS) return result;
    if (Model::in_body()) return CUDA_ERROR_NOT_PERMITTED;
    return body();
  });
}

// A call that needs a current context.
template <class Body>
CUresult in_context(Call call, Body&& body) {
  return initialised(call, [&]() -> CUresult {
    Context* context = nullptr;
    if (const CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
    return body(*context);
  });
}

}  // namespace hmshim::simgpu
