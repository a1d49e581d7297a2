// The pattern cut to pieces, the unit in which a schedule moves data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/access_pattern.hpp"
#include "policy/vocabulary.hpp"

namespace hmshim::policy {

using PieceIndex = std::uint32_t;
using TouchIndex = std::uint32_t;

struct Piece {
  PatternExtent extent;
  std::uint64_t offset_bytes;  // within the extent
  std::uint64_t bytes;
  bool is_persistent;
};

// One touch of a piece and the gap after it, up to the piece's next touch.
struct PieceTouch {
  PieceIndex piece;
  std::uint32_t gap_ticks;  // launches until the next touch, round the iteration's end; 0: the piece dies here
  bool is_written;
  bool is_birth;
};

class PieceMap {
 public:
  // Pieces are whole VA blocks of at most max(2 MiB, capacity / 1024): fine enough that the last piece that does not
  // fit wastes 0.1 % of the memory. Throws std::invalid_argument when the pattern is empty, an extent is never touched
  // or is not touched by the launch that it is said to be born in.
  PieceMap(const AccessPattern& pattern, std::uint64_t capacity_bytes);

  [[nodiscard]] LaunchIndex launches() const noexcept { return static_cast<LaunchIndex>(durations_ns_.size()); }
  [[nodiscard]] std::span<const Piece> pieces() const noexcept { return pieces_; }
  [[nodiscard]] std::span<const PieceTouch> touches() const noexcept { return touches_; }
  [[nodiscard]] TouchIndex touch_begin(LaunchIndex launch) const noexcept { return touch_begin_[launch]; }
  [[nodiscard]] TouchIndex touch_end(LaunchIndex launch) const noexcept { return touch_begin_[launch + 1]; }
  [[nodiscard]] std::uint64_t duration_ns(LaunchIndex launch) const noexcept { return durations_ns_[launch]; }
  // Bytes that come to life in the launch; bytes that it touches, those included.
  [[nodiscard]] std::uint64_t birth_bytes(LaunchIndex launch) const noexcept { return birth_bytes_[launch]; }
  [[nodiscard]] std::uint64_t touched_bytes(LaunchIndex launch) const noexcept { return touched_bytes_[launch]; }
  // The first of those that touch most: no capacity below its touched_bytes() can run the iteration.
  [[nodiscard]] LaunchIndex largest_launch() const noexcept {
    return static_cast<LaunchIndex>(std::max_element(touched_bytes_.begin(), touched_bytes_.end()) -
                                    touched_bytes_.begin());
  }
  // Bytes alive during the launch, wherever they are.
  [[nodiscard]] std::uint64_t live_bytes(LaunchIndex launch) const noexcept { return live_bytes_[launch]; }
  [[nodiscard]] std::uint64_t peak_live_bytes() const noexcept {
    return *std::max_element(live_bytes_.begin(), live_bytes_.end());
  }
  [[nodiscard]] std::uint64_t compute_ns() const noexcept { return start_ns_.back(); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept {
    return pieces_.capacity() * sizeof(Piece) + touches_.capacity() * sizeof(PieceTouch) +
           touch_begin_.capacity() * sizeof(TouchIndex) +
           (durations_ns_.capacity() + start_ns_.capacity() + birth_bytes_.capacity() + touched_bytes_.capacity() +
            live_bytes_.capacity()) *
               sizeof(std::uint64_t);
  }
  // Compute time from the start of launch `from` to the start of launch `to`, both absolute ticks, from <= to.
  [[nodiscard]] std::uint64_t compute_ns(Tick from, Tick to) const noexcept { return start_ns(to) - start_ns(from); }

 private:
  [[nodiscard]] std::uint64_t start_ns(Tick tick) const noexcept {
    return tick / launches() * compute_ns() + start_ns_[tick % launches()];
  }

  std::vector<std::uint64_t> durations_ns_;
  std::vector<std::uint64_t> start_ns_;  // launches + 1: without stalls
  std::vector<Piece> pieces_;
  std::vector<TouchIndex> touch_begin_;
  std::vector<PieceTouch> touches_;
  std::vector<std::uint64_t> birth_bytes_;
  std::vector<std::uint64_t> touched_bytes_;
  std::vector<std::uint64_t> live_bytes_;
};

}  // namespace hmshim::policy
