// Contexts: primary ones by device, created ones, and each thread's stack of current ones.
#include <algorithm>

#include "tests/simgpu/driver/capture.hpp"
#include "tests/simgpu/driver/driver.hpp"
#include "tests/simgpu/driver/memory.hpp"
#include "tests/simgpu/driver/module.hpp"

namespace hmshim::simgpu {
namespace {

// CU_CTX_SCHED_SPIN .. CU_CTX_SYNC_MEMOPS: the flags of cuCtxCreate and cuDevicePrimaryCtxSetFlags.
constexpr unsigned kContextFlags = CU_CTX_FLAGS_MASK;

// The caller holds Driver::mutex.
CUcontext make_context(CUdevice device, unsigned flags, bool is_primary) {
  Driver& state = driver();
  const CUcontext handle = state.contexts.create();
  Context& context = *state.contexts.find(handle);
  context.device = device;
  context.flags = flags;
  context.is_primary = is_primary;
  context.unique_id = state.next_id++;
  context.legacy.id = state.model->legacy_stream(device);
  context.legacy.context = handle;
  context.legacy.device = device;
  context.legacy.unique_id = state.next_id++;
  context.legacy.is_legacy = true;
  return handle;
}

// Frees what lives in a context. Work already enqueued still runs.
CUresult destroy_context(CUcontext handle) {
  Driver& state = driver();
  Context* context = state.contexts.find(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult synchronized = to_result(state.model->synchronize_device(context->device));
  std::vector<std::uint64_t> addresses;
  {
    const std::lock_guard lock(state.mutex);
    for (const auto& [address, memory] : state.memory) {
      if (memory.context == handle) addresses.push_back(address);
    }
  }
  for (const std::uint64_t address : addresses) release_memory(address);
  const auto in_context = [handle](const auto& object) { return object.context == handle; };
  for (const CUstream stream : state.streams.select(in_context)) {
    if (state.model->destroy_stream(state.streams.find(stream)->id) == Status::kOk) state.streams.destroy(stream);
  }
  for (const CUevent event : state.events.select(in_context)) {
    if (state.model->destroy_event(state.events.find(event)->id) == Status::kOk) state.events.destroy(event);
  }
  for (const CUmodule module : state.modules.select(in_context)) unload_module(module);
  state.contexts.destroy(handle);
  return synchronized;
}

CUresult create(Call call, CUcontext* out, unsigned flags, CUdevice device) {
  return initialised(call, [=] {
    if (out == nullptr || (flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    {
      const std::lock_guard lock(driver().mutex);
      *out = make_context(device, flags, false);
    }
    thread().stack.push_back(*out);
    return CUDA_SUCCESS;
  });
}

CUresult destroy(Call call, CUcontext handle) {
  return initialised(call, [=] {
    const Context* context = driver().contexts.find(handle);
    if (context == nullptr || context->is_primary) return CUDA_ERROR_INVALID_CONTEXT;
    std::vector<CUcontext>& stack = thread().stack;
    if (!stack.empty() && stack.back() == handle) stack.pop_back();
    return destroy_context(handle);
  });
}

CUresult push(Call call, CUcontext handle) {
  return initialised(call, [=] {
    if (driver().contexts.find(handle) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    thread().stack.push_back(handle);
    return CUDA_SUCCESS;
  });
}

CUresult pop(Call call, CUcontext* out) {
  return initialised(call, [=] {
    std::vector<CUcontext>& stack = thread().stack;
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (out != nullptr) *out = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult release_primary(Call call, CUdevice device) {
  return initialised(call, [=] {
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    CUcontext last = nullptr;
    {
      const std::lock_guard lock(driver().mutex);
      Driver::Primary& primary = driver().primaries[static_cast<std::size_t>(device)];
      if (primary.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
      if (--primary.references == 0) last = std::exchange(primary.context, nullptr);
    }
    return last == nullptr ? CUDA_SUCCESS : destroy_context(last);
  });
}

CUresult reset_primary(Call call, CUdevice device) {
  return initialised(call, [=] {
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    CUcontext last = nullptr;
    {
      const std::lock_guard lock(driver().mutex);
      last = std::exchange(driver().primaries[static_cast<std::size_t>(device)].context, nullptr);
    }
    return last == nullptr ? CUDA_SUCCESS : destroy_context(last);
  });
}

CUresult set_primary_flags(Call call, CUdevice device, unsigned flags) {
  return initialised(call, [=] {
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(driver().mutex);
    Driver::Primary& primary = driver().primaries[static_cast<std::size_t>(device)];
    primary.flags = flags;
    if (primary.context != nullptr) driver().contexts.find(primary.context)->flags = flags;
    return CUDA_SUCCESS;
  });
}

CUresult synchronize(const Context& context) {
  if (const CUresult result = check_synchronize_context(context.device); result != CUDA_SUCCESS) return result;
  return to_result(driver().model->synchronize_device(context.device));
}

std::size_t default_limit(CUlimit limit) {
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      return 1 << 10;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return 1 << 20;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      return 8 << 20;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      return 2;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
      return 2048;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
      return 64;
    default:
      return 0;
  }
}

}  // namespace
}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  return initialised(Call::cuDevicePrimaryCtxRetain, [=] {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    const std::lock_guard lock(driver().mutex);
    Driver::Primary& primary = driver().primaries[static_cast<std::size_t>(device)];
    if (primary.context == nullptr) primary.context = make_context(device, primary.flags, true);
    ++primary.references;
    *out = primary.context;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return release_primary(Call::cuDevicePrimaryCtxRelease, device); }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return release_primary(Call::cuDevicePrimaryCtxRelease_v2, device);
}
CUresult cuDevicePrimaryCtxReset(CUdevice device) { return reset_primary(Call::cuDevicePrimaryCtxReset, device); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return reset_primary(Call::cuDevicePrimaryCtxReset_v2, device); }
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  return set_primary_flags(Call::cuDevicePrimaryCtxSetFlags, device, flags);
}
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  return set_primary_flags(Call::cuDevicePrimaryCtxSetFlags_v2, device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
  return initialised(Call::cuDevicePrimaryCtxGetState, [=] {
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (flags == nullptr || is_active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(driver().mutex);
    const Driver::Primary& primary = driver().primaries[static_cast<std::size_t>(device)];
    *flags = primary.flags;
    *is_active = primary.context != nullptr;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device) {
  return create(Call::cuCtxCreate_v2, out, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam*, int affinities, unsigned flags, CUdevice device) {
  if (affinities != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create(Call::cuCtxCreate_v3, out, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams* parameters, unsigned flags, CUdevice device) {
  if (parameters != nullptr && parameters->numExecAffinityParams != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create(Call::cuCtxCreate_v4, out, flags, device);
}

CUresult cuCtxDestroy(CUcontext context) { return destroy(Call::cuCtxDestroy, context); }
CUresult cuCtxDestroy_v2(CUcontext context) { return destroy(Call::cuCtxDestroy_v2, context); }
CUresult cuCtxPushCurrent(CUcontext context) { return push(Call::cuCtxPushCurrent, context); }
CUresult cuCtxPushCurrent_v2(CUcontext context) { return push(Call::cuCtxPushCurrent_v2, context); }
CUresult cuCtxPopCurrent(CUcontext* out) { return pop(Call::cuCtxPopCurrent, out); }
CUresult cuCtxPopCurrent_v2(CUcontext* out) { return pop(Call::cuCtxPopCurrent_v2, out); }

// Replaces the top of the stack; NULL leaves the thread without a current context.
CUresult cuCtxSetCurrent(CUcontext context) {
  return initialised(Call::cuCtxSetCurrent, [=] {
    if (context != nullptr && driver().contexts.find(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    std::vector<CUcontext>& stack = thread().stack;
    if (!stack.empty()) stack.pop_back();
    if (context != nullptr) stack.push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* out) {
  return initialised(Call::cuCtxGetCurrent, [=] {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = thread().stack.empty() ? nullptr : thread().stack.back();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return in_context(Call::cuCtxGetDevice, [=](const Context& context) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context.device;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  if (handle == nullptr) return cuCtxGetDevice(device);
  return initialised(Call::cuCtxGetDevice_v2, [=] {
    const Context* context = driver().contexts.find(handle);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetFlags(unsigned* flags) {
  return in_context(Call::cuCtxGetFlags, [=](const Context& context) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = context.flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetFlags(unsigned flags) {
  return in_context(Call::cuCtxSetFlags, [=](Context& context) {
    if ((flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    context.flags = flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return initialised(Call::cuCtxGetId, [=]() -> CUresult {
    Context* context = driver().contexts.find(handle);
    if (handle == nullptr) {
      if (const CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
    }
    if (context == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = context->unique_id;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  return initialised(Call::cuCtxGetApiVersion, [=] {
    if (handle != nullptr && driver().contexts.find(handle) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize(void) {
  return in_context(Call::cuCtxSynchronize, [](const Context& context) { return synchronize(context); });
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  if (handle == nullptr) return cuCtxSynchronize();
  return initialised(Call::cuCtxSynchronize_v2, [=] {
    const Context* context = driver().contexts.find(handle);
    return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : synchronize(*context);
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return in_context(Call::cuCtxGetStreamPriorityRange, [=](const Context&) {
    if (least != nullptr) *least = kLeastPriority;
    if (greatest != nullptr) *greatest = kGreatestPriority;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  return in_context(Call::cuCtxGetLimit, [=](const Context& context) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    const std::lock_guard lock(driver().mutex);
    const auto set = context.limits.find(limit);
    *value = set == context.limits.end() ? default_limit(limit) : set->second;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  return in_context(Call::cuCtxSetLimit, [=](Context& context) {
    if (limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    const std::lock_guard lock(driver().mutex);
    context.limits[limit] = value;
    return CUDA_SUCCESS;
  });
}

// Preferences without effect in a simulation.
CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  return in_context(Call::cuCtxGetCacheConfig, [=](const Context&) {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *config = CU_FUNC_CACHE_PREFER_NONE;
    return CUDA_SUCCESS;
  });
}
CUresult cuCtxSetCacheConfig(CUfunc_cache) {
  return in_context(Call::cuCtxSetCacheConfig, [](const Context&) { return CUDA_SUCCESS; });
}
CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  return in_context(Call::cuCtxGetSharedMemConfig, [=](const Context&) {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
    return CUDA_SUCCESS;
  });
}
CUresult cuCtxSetSharedMemConfig(CUsharedconfig) {
  return in_context(Call::cuCtxSetSharedMemConfig, [](const Context&) { return CUDA_SUCCESS; });
}
CUresult cuCtxResetPersistingL2Cache(void) {
  return in_context(Call::cuCtxResetPersistingL2Cache, [](const Context&) { return CUDA_SUCCESS; });
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return in_context(Call::cuCtxEnablePeerAccess, [=](const Context& context) {
    const Context* other = driver().contexts.find(peer);
    if (other == nullptr || other->device == context.device) return CUDA_ERROR_INVALID_CONTEXT;
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}
CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return in_context(Call::cuCtxDisablePeerAccess, [=](const Context&) {
    return driver().contexts.find(peer) == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  });
}

CUresult cuProfilerStart(void) {
  return in_context(Call::cuProfilerStart, [](const Context&) { return CUDA_SUCCESS; });
}
CUresult cuProfilerStop(void) {
  return in_context(Call::cuProfilerStop, [](const Context&) { return CUDA_SUCCESS; });
}

}  // extern "C"
