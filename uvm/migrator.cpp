#include "uvm/migrator.hpp"

#include <algorithm>
#include <optional>

#include "uvm/migration_pause.hpp"

namespace hmshim::uvm {

namespace {

// Another thread's capture in global mode forbids calls that are unsafe inside a capture to every thread (cuda.h,
// cuThreadExchangeStreamCaptureMode). Ours concern no captured stream, so this thread opts out while it makes them.
class RelaxedCaptureMode {
 public:
  explicit RelaxedCaptureMode(const DriverApi& api) noexcept : api_(api) {
    is_exchanged_ = api_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
  ~RelaxedCaptureMode() {
    if (is_exchanged_) static_cast<void>(api_.cuThreadExchangeStreamCaptureMode(&mode_));
  }
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  const DriverApi& api_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool is_exchanged_;
};

// An error (the legacy stream while a blocking stream captures: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) means hands off as
// well.
bool may_be_capturing(const DriverApi& api, CUstream stream) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return api.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace

CUresult prefetch(const DriverApi& api, std::uint64_t base, std::uint64_t bytes, CUdevice target,
                  CUstream stream) noexcept {
  const MigrationPause::Call call(migration_pause);
  if (api.cuMemPrefetchAsync_v2 == nullptr) return api.cuMemPrefetchAsync_v8000(base, bytes, target, stream);
  return api.cuMemPrefetchAsync_v2(base, bytes, location_of(target), 0, stream);
}

void Migrator::execute(std::span<const policy::Action> actions, CUstream stream) noexcept {
  if (actions.empty()) return;
  if (may_be_capturing(api_, stream)) {
    skipped_in_capture_.fetch_add(actions.size(), std::memory_order_relaxed);
    return;
  }
  const RelaxedCaptureMode relaxed(api_);
  for (const policy::Action& action : actions) {
    if (action.kind == policy::ActionKind::Discard) continue;  // the pool's to do, under its lock
    const std::optional<Allocation> allocation = table_.lookup_extent(action.extent);
    if (!allocation) continue;
    const bool is_demote = action.kind == policy::ActionKind::Demote;
    const CUdevice target = is_demote ? CU_DEVICE_CPU : static_cast<CUdevice>(allocation->device);
    std::atomic<std::uint64_t>& moved_bytes = is_demote ? demoted_bytes_ : prefetched_bytes_;
    const std::uint64_t end = allocation->base + policy::round_up_to_block(allocation->bytes);
    for (std::uint64_t at = allocation->base; at < end; at += kMostBytesPerCall) {
      const std::uint64_t bytes = std::min(kMostBytesPerCall, end - at);
      if (prefetch(api_, at, bytes, target, stream) != CUDA_SUCCESS) {
        failed_calls_.fetch_add(1, std::memory_order_relaxed);
        break;  // what refused this chunk refuses the next: out of host memory, or a freed extent
      }
      moved_bytes.fetch_add(bytes, std::memory_order_relaxed);
    }
  }
}

MigratorTotals Migrator::totals() const noexcept {
  return {.demoted_bytes = demoted_bytes_.load(std::memory_order_relaxed),
          .prefetched_bytes = prefetched_bytes_.load(std::memory_order_relaxed),
          .failed_calls = failed_calls_.load(std::memory_order_relaxed),
          .skipped_in_capture = skipped_in_capture_.load(std::memory_order_relaxed)};
}

}  // namespace hmshim::uvm
