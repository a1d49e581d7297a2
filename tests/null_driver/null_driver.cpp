// The fewest driver calls that hmshim and its benchmarks make, each with the cheapest body that keeps its promise.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace {

constexpr std::uint64_t kBlock = std::uint64_t{2} << 20;
constexpr std::uint64_t kDeviceBytes = std::uint64_t{64} << 30;
// Far from everything the process maps, so that no host pointer looks like a device one.
std::atomic<std::uint64_t> next_address{std::uint64_t{0x0000'1000'0000'0000}};
// Freed blocks are handed out again, as a driver would: one remembered address is enough for alloc+free pairs.
std::atomic<std::uint64_t> last_freed{0};
// Calls that are no launches: a launch in its steady state must cause none.
std::atomic<std::uint64_t> other_calls{0};

CUresult done() {
  other_calls.fetch_add(1, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult hand_out(CUdeviceptr* out, std::size_t bytes) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes <= kBlock) {
    if (const std::uint64_t again = last_freed.exchange(0, std::memory_order_relaxed)) {
      *out = again;
      return done();
    }
  }
  *out = next_address.fetch_add((bytes + kBlock - 1) / kBlock * kBlock, std::memory_order_relaxed);
  return done();
}

// Two kernels by name: "pointers" takes four pointers, "block" one 4 KiB struct.
struct Kernel {
  std::size_t parameters;
  std::size_t bytes_each;
};
Kernel pointers{4, 8};
Kernel block{1, 4096};

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return done(); }
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return done();
}
CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return done();
}
CUresult cuDeviceGet(CUdevice* device, int) {
  *device = 0;
  return done();
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY ||
           attribute == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS ||
           attribute == CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
  return done();
}
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = kDeviceBytes;
  return done();
}
CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = kDeviceBytes;
  return done();
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return done();
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(std::uintptr_t{0x10});
  return done();
}
CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned) { return hand_out(out, bytes); }
CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) { return hand_out(out, bytes); }
CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream) { return hand_out(out, bytes); }
CUresult cuMemFree_v2(CUdeviceptr address) {
  last_freed.store(address, std::memory_order_relaxed);
  return done();
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream) { return done(); }
CUresult cuMemAdvise_v2(CUdeviceptr, size_t, CUmem_advise, CUmemLocation) { return done(); }
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return done(); }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = reinterpret_cast<CUfunction>(std::strcmp(name, "block") == 0 ? &block : &pointers);
  return done();
}
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  const Kernel& kernel = *reinterpret_cast<const Kernel*>(function);
  if (index >= kernel.parameters) return CUDA_ERROR_INVALID_VALUE;
  *offset = index * kernel.bytes_each;
  if (size != nullptr) *size = kernel.bytes_each;
  return done();
}
CUresult cuKernelGetParamInfo(CUkernel, size_t, size_t*, size_t*) { return CUDA_ERROR_INVALID_HANDLE; }  // it has none
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void**, void**) {
  return CUDA_SUCCESS;
}
CUresult cuCtxDestroy_v2(CUcontext) { return done(); }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return cuCtxGetCurrent(context); }
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* is_alive) {
  *flags = 0;
  *is_alive = 1;
  return done();
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return done();
}
CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(std::uintptr_t{0x20});
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) { return CUDA_SUCCESS; }
CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(std::uintptr_t{0x30});
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent, CUstream) { return CUDA_SUCCESS; }
CUresult cuEventQuery(CUevent) { return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) { return done(); }
CUresult cuCtxSynchronize() { return done(); }
// No event ever completes: a thread waits here until it is cancelled.
CUresult cuEventSynchronize(CUevent) {
  for (;;) pause();
}

unsigned long long null_driver_other_calls(void) { return other_calls.load(std::memory_order_relaxed); }

}  // extern "C"
