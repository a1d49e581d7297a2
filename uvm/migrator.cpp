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

}  // namespace

CUresult prefetch(const DriverApi& api, std::uint64_t base, std::uint64_t bytes, CUdevice target,
                  CUstream stream) noexcept {
  const MigrationPause::Call call(migration_pause);
  if (api.cuMemPrefetchAsync_v2 == nullptr) return api.cuMemPrefetchAsync_v8000(base, bytes, target, stream);
  return api.cuMemPrefetchAsync_v2(base, bytes, location_of(target), 0, stream);
}

std::uint64_t move(const DriverApi& api, const Allocation& allocation, policy::ActionKind kind,
                   CUstream stream) noexcept {
  const CUdevice target = kind == policy::ActionKind::Demote ? CU_DEVICE_CPU : static_cast<CUdevice>(allocation.device);
  const std::uint64_t bytes = policy::round_up_to_block(allocation.bytes);
  std::uint64_t moved = 0;
  while (moved < bytes) {
    const std::uint64_t part = std::min(kMostBytesPerCall, bytes - moved);
    if (prefetch(api, allocation.base + moved, part, target, stream) != CUDA_SUCCESS) break;
    moved += part;
  }
  return moved;
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
    const std::uint64_t bytes = move(api_, *allocation, action.kind, stream);
    (action.kind == policy::ActionKind::Demote ? demoted_bytes_ : prefetched_bytes_)
        .fetch_add(bytes, std::memory_order_relaxed);
    // Out of host memory, or a freed extent.
    if (bytes < policy::round_up_to_block(allocation->bytes)) failed_calls_.fetch_add(1, std::memory_order_relaxed);
  }
}

MigratorTotals Migrator::totals() const noexcept {
  return {.demoted_bytes = demoted_bytes_.load(std::memory_order_relaxed),
          .prefetched_bytes = prefetched_bytes_.load(std::memory_order_relaxed),
          .failed_calls = failed_calls_.load(std::memory_order_relaxed),
          .skipped_in_capture = skipped_in_capture_.load(std::memory_order_relaxed)};
}

}  // namespace hmshim::uvm
