#include "interpose/captures.hpp"

namespace hmshim::interpose {

void Captures::began(CUstream stream) {
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
  running_.store(streams_.size(), std::memory_order_relaxed);
}

void Captures::may_have_ended(CUstream stream, const uvm::DriverApi& driver) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE) return;
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
  running_.store(streams_.size(), std::memory_order_relaxed);
}

}  // namespace hmshim::interpose
