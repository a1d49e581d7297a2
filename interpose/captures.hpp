// Which streams are being captured into a graph. While any is, the library issues nothing on a guest's stream and
// allocates as the driver would: any call of ours could invalidate the capture or end up inside the graph.
#pragma once

#include <cuda.h>

#include <atomic>
#include <mutex>
#include <unordered_set>

#include "uvm/driver_api.hpp"

namespace hmshim::interpose {

class Captures {
 public:
  // One load: asked at every launch.
  [[nodiscard]] bool are_running() const noexcept { return running_.load(std::memory_order_relaxed) != 0; }

  // Whether work on `stream` is recorded instead of run. A driver that will not say (the legacy stream while a blocking
  // one is captured) refuses the work as well.
  [[nodiscard]] bool holds(CUstream stream, const uvm::DriverApi& driver) const noexcept {
    return are_running() && uvm::may_be_capturing(driver, stream);
  }

  // After a call that began a capture, successfully.
  void began(CUstream stream);
  // After a call that may have ended it: an invalidated capture ends with an error, a refused call leaves it running,
  // so the driver is asked.
  void may_have_ended(CUstream stream, const uvm::DriverApi& driver) noexcept;

 private:
  std::atomic<std::size_t> running_{0};
  std::mutex mutex_;
  std::unordered_set<CUstream> streams_;
};

}  // namespace hmshim::interpose
