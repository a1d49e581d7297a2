#pragma once

#include <cstdint>

#include "tests/simgpu/model/model.hpp"

namespace hmshim::simgpu::machine {

/// What the driver remembers of one block's migrations between processors, and its answer to a fault on a block that
/// they fight over: one of them waits, and after ten such waits the block is pinned and others reach it over the link.
/// As nvidia-uvm's uvm_perf_thrashing.c, by block instead of by page, for processors of which only the host's memory
/// can be reached by all (no NVLink). Evictions do not count, so a working set larger than the device is no thrashing.
class Thrashing {
 public:
  enum class Answer { kMigrate, kThrottle, kPin };
  struct Hint {
    Answer answer = Answer::kMigrate;
    TimeNs until_ns = 0;         ///< kThrottle: when the faulting processor may try again
    Location pinned = kNowhere;  ///< kPin
  };

  /// A fault of `to` has brought the block's content there.
  void migrated(Location to, TimeNs now_ns, TimeNs lapse_ns);
  /// What the guest orders takes precedence: the history is dropped.
  void reset() { *this = Thrashing(); }
  [[nodiscard]] Hint on_fault(Location requester, Location preferred, TimeNs now_ns, TimeNs lapse_ns);
  /// True once, when a pin has ended: remote mappings must go.
  [[nodiscard]] bool ends_pin(TimeNs now_ns);

 private:
  [[nodiscard]] Hint decide(Location requester, Location preferred) const;
  [[nodiscard]] static std::uint32_t bit(Location processor) { return 1U << static_cast<unsigned>(processor + 1); }

  Location last_processor_ = kNowhere;
  TimeNs last_event_ns_ = -1;
  TimeNs last_thrashing_ns_ = -1;
  bool is_tracked_ = false;   ///< two processors have met: from then on events are counted
  bool has_counted_ = false;  ///< the first event after that only sets the time
  std::uint32_t events_ = 0;
  std::uint32_t throttles_ = 0;
  std::uint32_t throttled_ = 0;  ///< processors, by bit()
  TimeNs throttle_end_ns_ = 0;
  Location not_throttled_ = kNowhere;  ///< whose turn it is
  Location pinned_ = kNowhere;
  TimeNs pinned_until_ns_ = 0;
  std::uint32_t resets_ = 0;
};

}  // namespace hmshim::simgpu::machine
