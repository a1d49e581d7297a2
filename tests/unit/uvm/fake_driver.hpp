// A driver in a few lines: hands out addresses, remembers what is live, records prefetches and fails on demand. One at
// a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "uvm/driver_api.hpp"

namespace hmshim::uvm {

class FakeDriver {
 public:
  struct Prefetch {
    std::uint64_t base;
    std::uint64_t bytes;
    int device;  // CU_DEVICE_CPU for the host
    CUstream stream;
    bool is_old_abi;
    CUstreamCaptureMode mode;  // of the calling thread at the time
    bool operator==(const Prefetch&) const = default;
  };

  struct Advice {
    std::uint64_t base;
    std::uint64_t bytes;
    CUmem_advise advice;
    int device;  // CU_DEVICE_CPU for the host
    bool operator==(const Advice&) const = default;
  };

  // What orders streams and drops memory, in the order of the calls.
  struct Step {
    enum class Kind { Record, Wait, Discard, Synchronize } kind;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    std::vector<std::uint64_t> addresses{};
    bool operator==(const Step&) const = default;
  };

  FakeDriver() { current_ = this; }
  ~FakeDriver() { current_ = nullptr; }

  DriverApi api() {
    DriverApi api;
    api.cuDriverGetVersion = [](int* version) { return *version = 13000, CUDA_SUCCESS; };
    api.cuDeviceGetName = [](char* name, int size, CUdevice) {
      return std::strncpy(name, "Fake 1", static_cast<size_t>(size)), CUDA_SUCCESS;
    };
    api.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute, CUdevice) {
      const auto found = current_->attributes.find(attribute);
      if (found == current_->attributes.end()) return CUDA_ERROR_INVALID_VALUE;
      return *value = found->second, CUDA_SUCCESS;
    };
    api.cuMemAllocManaged = [](CUdeviceptr* out, size_t bytes, unsigned flags) {
      return flags == CU_MEM_ATTACH_GLOBAL ? current_->allocate(out, bytes) : CUDA_ERROR_INVALID_VALUE;
    };
    api.cuMemAlloc_v2 = [](CUdeviceptr* out, size_t bytes) { return current_->allocate(out, bytes); };
    api.cuMemFree_v2 = [](CUdeviceptr base) { return current_->free(base); };
    api.cuMemPrefetchAsync_v2 = [](CUdeviceptr base, size_t bytes, CUmemLocation where, unsigned, CUstream stream) {
      return current_->prefetch(base, bytes, where.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU : where.id, stream,
                                false);
    };
    api.cuMemPrefetchAsync_v8000 = [](CUdeviceptr base, size_t bytes, CUdevice device, CUstream stream) {
      return current_->prefetch(base, bytes, device, stream, true);
    };
    api.cuMemAdvise_v2 = [](CUdeviceptr base, size_t bytes, CUmem_advise given, CUmemLocation where) {
      return current_->advise({base, bytes, given, where.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU : where.id});
    };
    api.cuMemAdvise_v8000 = [](CUdeviceptr base, size_t bytes, CUmem_advise given, CUdevice device) {
      return current_->advise({base, bytes, given, device});
    };
    api.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
      *status = current_->capture_status;
      return current_->capture_query;
    };
    api.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* exchanged) {
      return std::swap(*exchanged, current_->mode), CUDA_SUCCESS;
    };
    api.cuStreamCreate = [](CUstream* stream, unsigned) {
      return *stream = reinterpret_cast<CUstream>(++current_->handles_), CUDA_SUCCESS;
    };
    api.cuEventCreate = [](CUevent* event, unsigned) {
      return *event = reinterpret_cast<CUevent>(++current_->handles_), ++current_->live_events, CUDA_SUCCESS;
    };
    api.cuEventDestroy_v2 = [](CUevent) { return --current_->live_events, CUDA_SUCCESS; };
    api.cuEventRecord = [](CUevent event, CUstream stream) {
      return current_->step({Step::Kind::Record, stream, event});
    };
    api.cuStreamWaitEvent = [](CUstream stream, CUevent event, unsigned) {
      return current_->step({Step::Kind::Wait, stream, event});
    };
    api.cuEventQuery = [](CUevent) { return current_->is_idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; };
    api.cuCtxSynchronize = [] { return current_->step({Step::Kind::Synchronize}); };
    api.cuMemDiscardBatchAsync = [](CUdeviceptr* addresses, size_t*, size_t count, unsigned long long,
                                    CUstream stream) {
      return current_->step({Step::Kind::Discard, stream, nullptr, {addresses, addresses + count}});
    };
    return api;
  }

  // The k-th call from now, of those that allocate, free, prefetch, advise, order or discard, fails with
  // CUDA_ERROR_ILLEGAL_STATE. 0: none.
  void fail_call(int k) { calls_until_failure_ = k; }
  [[nodiscard]] bool has_failed() const { return has_failed_; }
  [[nodiscard]] std::map<std::uint64_t, std::uint64_t> live() const { return live_; }

  std::uint64_t misalignment_bytes = 0;  // of every address handed out
  std::map<int, int> attributes;
  CUstreamCaptureStatus capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult capture_query = CUDA_SUCCESS;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::vector<Prefetch> prefetches;
  std::vector<Advice> advice;
  std::vector<Step> steps;
  int live_events = 0;
  bool is_idle = true;  // every event has completed

 private:
  bool fails_now() {
    const bool fails = calls_until_failure_ > 0 && --calls_until_failure_ == 0;
    has_failed_ |= fails;
    return fails;
  }
  CUresult allocate(CUdeviceptr* out, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (fails_now()) return CUDA_ERROR_ILLEGAL_STATE;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    *out = next_ + misalignment_bytes;
    next_ += (bytes / (2 << 20) + 2) * (2 << 20);
    live_[*out] = bytes;
    return CUDA_SUCCESS;
  }
  CUresult free(CUdeviceptr base) {
    const std::lock_guard lock(mutex_);
    if (fails_now()) return CUDA_ERROR_ILLEGAL_STATE;
    return live_.erase(base) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  CUresult prefetch(std::uint64_t base, std::uint64_t bytes, int device, CUstream stream, bool is_old_abi) {
    if (fails_now()) return CUDA_ERROR_ILLEGAL_STATE;
    prefetches.push_back({base, bytes, device, stream, is_old_abi, mode});
    return CUDA_SUCCESS;
  }
  CUresult advise(const Advice& given) {
    if (fails_now()) return CUDA_ERROR_ILLEGAL_STATE;
    advice.push_back(given);
    return CUDA_SUCCESS;
  }
  CUresult step(Step taken) {
    const std::lock_guard lock(mutex_);
    if (fails_now()) return CUDA_ERROR_ILLEGAL_STATE;
    steps.push_back(std::move(taken));
    return CUDA_SUCCESS;
  }

  inline static FakeDriver* current_ = nullptr;
  std::mutex mutex_;
  int calls_until_failure_ = 0;
  std::uintptr_t handles_ = 0x1000;
  bool has_failed_ = false;
  std::uint64_t next_ = 0x7f0000000000;
  std::map<std::uint64_t, std::uint64_t> live_;
};

}  // namespace hmshim::uvm
