#include "uvm/migration_lane.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "uvm/migrator.hpp"

namespace hmshim::uvm {

CUresult MigrationLane::open() noexcept {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (const CUresult result = api_.cuThreadExchangeStreamCaptureMode(&mode); result != CUDA_SUCCESS) return result;
  int least = 0, greatest = 0;
  if (const CUresult result = api_.cuCtxGetStreamPriorityRange(&least, &greatest); result != CUDA_SUCCESS)
    return result;
  for (Turn& turn : turns_) {
    CUresult result = api_.cuStreamCreateWithPriority(&turn.stream, CU_STREAM_NON_BLOCKING, greatest);
    if (result == CUDA_SUCCESS) {
      result = api_.cuEventCreate(&turn.arrived, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult MigrationLane::move(std::uint64_t base, std::uint64_t bytes, CUdevice target) noexcept {
  CUresult result = CUDA_SUCCESS;
  const std::uint64_t end = base + bytes;
  for (std::size_t i = 0; base < end && result == CUDA_SUCCESS; ++i) {
    Turn& turn = turns_[i % turns_.size()];
    result = await(turn);
    const std::uint64_t part = std::min(kMostBytesPerCall, end - base);
    if (result == CUDA_SUCCESS) result = prefetch(api_, base, part, target, turn.stream);
    if (result == CUDA_SUCCESS) result = api_.cuEventRecord(turn.arrived, turn.stream);
    turn.is_under_way = result == CUDA_SUCCESS;
    base += part;
  }
  for (Turn& turn : turns_) {
    const CUresult waited = await(turn);
    if (result == CUDA_SUCCESS) result = waited;
  }
  return result;
}

CUresult MigrationLane::await(Turn& turn) const noexcept {
  return std::exchange(turn.is_under_way, false) ? api_.cuEventSynchronize(turn.arrived) : CUDA_SUCCESS;
}

}  // namespace hmshim::uvm
