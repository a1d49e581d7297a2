// Device, managed and pinned host memory: allocation and release.
#include "tests/simgpu/driver/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/simgpu/driver/capture.hpp"

namespace hmshim::simgpu {
namespace {

// Row pitch of cuMemAllocPitch: what coalesced access wants on every architecture.
constexpr std::size_t kPitchBytes = 512;

bool is_owned(MemoryOrigin origin) {
  return origin == MemoryOrigin::Device || origin == MemoryOrigin::Managed || origin == MemoryOrigin::Pool;
}

// Takes the entry that begins at `address` if `accepts` its origin, so that of two racing frees one fails.
template <class Accepts>
std::optional<Memory> take(std::uint64_t address, Accepts accepts) {
  Driver& state = driver();
  const std::lock_guard lock(state.mutex);
  const auto found = state.memory.find(address);
  if (found == state.memory.end() || !accepts(found->second.origin)) return std::nullopt;
  return std::move(state.memory.extract(found).mapped());
}

CUresult free_taken(std::uint64_t address, const Memory& memory) {
  switch (memory.origin) {
    case MemoryOrigin::Host:
      munmap(reinterpret_cast<void*>(address), memory.bytes);
      return CUDA_SUCCESS;
    case MemoryOrigin::Registered:
      return CUDA_SUCCESS;
    default:
      break;
  }
  const CUresult result = to_result(driver().model->free_memory(address));
  if (memory.origin == MemoryOrigin::Pool) {
    const std::lock_guard lock(driver().mutex);
    if (Pool* pool = driver().pools.find(memory.pool)) pool->used_bytes -= memory.bytes;
  }
  return result;
}

CUresult allocate_device(const Context& context, CUcontext handle, CUdeviceptr* out, std::size_t bytes) {
  std::uint64_t address = 0;
  if (const Status status = driver().model->allocate_device(context.device, bytes, &address); status != Status::kOk) {
    return to_result(status);
  }
  remember_memory(address,
                  {.origin = MemoryOrigin::Device, .bytes = bytes, .context = handle, .device = context.device});
  *out = address;
  return CUDA_SUCCESS;
}

CUresult allocate_host(CUcontext handle, void** out, std::size_t bytes, unsigned flags) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > SIZE_MAX - page_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  remember_memory(reinterpret_cast<std::uint64_t>(address),
                  {.origin = MemoryOrigin::Host, .bytes = bytes, .context = handle, .flags = flags});
  *out = address;
  return CUDA_SUCCESS;
}

// An allocation call: needs a context, and is unsafe while a stream captures.
template <class Body>
CUresult allocating(Call call, Body&& body) {
  return in_context(call, [&](const Context& context) -> CUresult {
    if (const CUresult result = check_unsafe_call(); result != CUDA_SUCCESS) return result;
    return body(context, thread().stack.back());
  });
}

}  // namespace

Place place_of(std::uint64_t address, std::uint64_t bytes) {
  if (const auto allocation = driver().model->find_allocation(address)) {
    if (bytes > allocation->bytes - (address - allocation->address)) return Place::Invalid;
    return allocation->kind == MemoryKind::kManaged ? Place::Managed : Place::Device;
  }
  return driver().find_memory(address) ? Place::Pinned : Place::Pageable;
}

void remember_memory(std::uint64_t address, Memory memory) {
  const std::lock_guard lock(driver().mutex);
  memory.buffer_id = driver().next_id++;
  driver().memory.insert_or_assign(address, memory);
}

CUresult release_memory(std::uint64_t address) {
  const auto memory = take(address, [](MemoryOrigin) { return true; });
  return memory ? free_taken(address, *memory) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  return in_context(Call::cuMemGetInfo_v2, [=](const Context& context) {
    MemInfo info;
    if (const Status status = driver().model->mem_info(context.device, &info); status != Status::kOk) {
      return to_result(status);
    }
    if (free_bytes != nullptr) *free_bytes = info.free_bytes;
    if (total_bytes != nullptr) *total_bytes = info.total_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  return allocating(Call::cuMemAlloc_v2, [=](const Context& context, CUcontext handle) {
    if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return allocate_device(context, handle, out, bytes);
  });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned element_bytes) {
  return allocating(Call::cuMemAllocPitch_v2, [=](const Context& context, CUcontext handle) {
    if (out == nullptr || pitch == nullptr || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
    if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t row = (width + kPitchBytes - 1) / kPitchBytes * kPitchBytes;
    if (row < width || height > SIZE_MAX / row) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = allocate_device(context, handle, out, row * height);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
  });
}

CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  return allocating(Call::cuMemAllocManaged, [=](const Context& context, CUcontext handle) {
    if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t address = 0;
    const Status status = driver().model->allocate_managed(context.device, bytes, &address);
    if (status != Status::kOk) return to_result(status);
    remember_memory(
        address,
        {.origin = MemoryOrigin::Managed, .bytes = bytes, .context = handle, .device = context.device, .flags = flags});
    *out = address;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  return allocating(Call::cuMemFree_v2, [=](const Context&, CUcontext) {
    if (address == 0) return CUDA_SUCCESS;
    const auto memory = take(address, is_owned);
    return memory ? free_taken(address, *memory) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  return in_context(Call::cuMemGetAddressRange_v2, [=](const Context&) {
    const auto found = driver().find_memory(address);
    if (!found) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = found->first;
    if (bytes != nullptr) *bytes = found->second.bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAllocHost_v2(void** out, size_t bytes) {
  return allocating(Call::cuMemAllocHost_v2,
                    [=](const Context&, CUcontext handle) { return allocate_host(handle, out, bytes, 0); });
}

CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  return allocating(Call::cuMemHostAlloc, [=](const Context&, CUcontext handle) {
    constexpr unsigned kFlags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if ((flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    return allocate_host(handle, out, bytes, flags);
  });
}

CUresult cuMemFreeHost(void* address) {
  return allocating(Call::cuMemFreeHost, [=](const Context& context, CUcontext) {
    const auto key = reinterpret_cast<std::uint64_t>(address);
    if (address == nullptr) return CUDA_SUCCESS;
    const auto memory = take(key, [](MemoryOrigin origin) { return origin == MemoryOrigin::Host; });
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    // Copies that were enqueued may still read it.
    const CUresult result = to_result(driver().model->synchronize_device(context.device));
    free_taken(key, *memory);
    return result;
  });
}

CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  return allocating(Call::cuMemHostRegister_v2, [=](const Context&, CUcontext handle) {
    if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const auto key = reinterpret_cast<std::uint64_t>(address);
    if (place_of(key, bytes) != Place::Pageable) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    remember_memory(key, {.origin = MemoryOrigin::Registered, .bytes = bytes, .context = handle, .flags = flags});
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostUnregister(void* address) {
  return allocating(Call::cuMemHostUnregister, [=](const Context& context, CUcontext) {
    const auto key = reinterpret_cast<std::uint64_t>(address);
    const auto memory = take(key, [](MemoryOrigin origin) { return origin == MemoryOrigin::Registered; });
    if (!memory) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    return to_result(driver().model->synchronize_device(context.device));
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* address, unsigned flags) {
  return in_context(Call::cuMemHostGetDevicePointer_v2, [=](const Context&) {
    if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto found = driver().find_memory(reinterpret_cast<std::uint64_t>(address));
    const bool is_host =
        found && (found->second.origin == MemoryOrigin::Host || found->second.origin == MemoryOrigin::Registered);
    if (!is_host) return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<CUdeviceptr>(address);  // unified addressing
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetFlags(unsigned* flags, void* address) {
  return in_context(Call::cuMemHostGetFlags, [=](const Context&) {
    const auto found = driver().find_memory(reinterpret_cast<std::uint64_t>(address));
    if (flags == nullptr || !found || found->second.origin != MemoryOrigin::Host) return CUDA_ERROR_INVALID_VALUE;
    *flags = found->second.flags;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
