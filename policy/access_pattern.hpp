// The learned iteration as plain data: which launch touches which extents, for how long it runs, what dies when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hmshim::policy {

// Extents and launches are numbered within the pattern: an iteration outlives the ExtentIds of any one round.
using PatternExtent = std::uint32_t;
using LaunchIndex = std::uint32_t;

// Extents that no launch gives birth to live across iterations: weights, optimizer states.
inline constexpr LaunchIndex kPersistent = ~LaunchIndex{0};

struct ExtentTouch {
  PatternExtent extent;
  bool is_written;
};

// Structure of arrays: 4 bytes a touch, 12 a launch, 12 an extent. 100,000 launches of 5 extents take about 4 MB.
class AccessPattern {
 public:
  // Returns the new extent's number. `born` is the launch that first touches the extent, which then lives up to its
  // last touch before `born` comes round again. Throws std::invalid_argument for zero bytes.
  PatternExtent add_extent(std::uint64_t bytes, LaunchIndex born);
  // Appends a launch. Throws std::invalid_argument when a touch names an extent that is not there, or names it twice.
  void add_launch(std::uint64_t duration_ns, std::span<const ExtentTouch> touches);

  [[nodiscard]] LaunchIndex launches() const noexcept { return static_cast<LaunchIndex>(durations_ns_.size()); }
  [[nodiscard]] PatternExtent extents() const noexcept { return static_cast<PatternExtent>(extent_bytes_.size()); }
  [[nodiscard]] std::uint64_t duration_ns(LaunchIndex launch) const noexcept { return durations_ns_[launch]; }
  [[nodiscard]] std::uint64_t extent_bytes(PatternExtent extent) const noexcept { return extent_bytes_[extent]; }
  [[nodiscard]] LaunchIndex born(PatternExtent extent) const noexcept { return born_[extent]; }

  [[nodiscard]] std::size_t touches(LaunchIndex launch) const noexcept {
    return touch_begin_[launch + 1] - touch_begin_[launch];
  }
  [[nodiscard]] ExtentTouch touch(LaunchIndex launch, std::size_t i) const noexcept {
    const std::uint32_t packed = touches_[touch_begin_[launch] + i];
    return {packed >> 1, (packed & 1) != 0};
  }
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  std::vector<std::uint64_t> durations_ns_;
  std::vector<std::uint32_t> touch_begin_{0};
  std::vector<std::uint32_t> touches_;  // extent << 1 | is_written
  std::vector<std::uint64_t> extent_bytes_;
  std::vector<LaunchIndex> born_;
};

}  // namespace hmshim::policy
