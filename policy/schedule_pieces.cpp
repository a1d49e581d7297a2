#include "policy/schedule_pieces.hpp"

#include <stdexcept>
#include <string>

namespace hmshim::policy {
namespace {

constexpr std::uint64_t kPiecesPerCapacity = 1024;

std::uint64_t largest_piece(std::uint64_t capacity_bytes) {
  return std::max(capacity_bytes / kPiecesPerCapacity / kBlockBytes * kBlockBytes, kBlockBytes);
}

}  // namespace

PieceMap::PieceMap(const AccessPattern& pattern, std::uint64_t capacity_bytes) {
  const LaunchIndex n = pattern.launches();
  if (n == 0) throw std::invalid_argument("the pattern has no launch");
  start_ns_.push_back(0);
  for (LaunchIndex k = 0; k < n; ++k) {
    durations_ns_.push_back(pattern.duration_ns(k));
    start_ns_.push_back(start_ns_.back() + pattern.duration_ns(k));
  }

  const std::uint64_t piece_bytes = largest_piece(capacity_bytes);
  std::vector<PieceIndex> first_piece{0};
  for (PatternExtent e = 0; e < pattern.extents(); ++e) {
    for (std::uint64_t offset = 0; offset < pattern.extent_bytes(e); offset += piece_bytes) {
      pieces_.push_back(
          {e, offset, std::min(piece_bytes, pattern.extent_bytes(e) - offset), pattern.born(e) == kPersistent});
    }
    first_piece.push_back(static_cast<PieceIndex>(pieces_.size()));
  }

  birth_bytes_.assign(n, 0);
  touched_bytes_.assign(n, 0);
  touch_begin_.push_back(0);
  std::vector<bool> is_touched(pattern.extents()), is_born(pattern.extents());
  for (LaunchIndex k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < pattern.touches(k); ++i) {
      const auto [extent, is_written] = pattern.touch(k, i);
      const bool is_birth = pattern.born(extent) == k;
      is_touched[extent] = true;
      if (is_birth) {
        is_born[extent] = true;
        birth_bytes_[k] += pattern.extent_bytes(extent);
      }
      touched_bytes_[k] += pattern.extent_bytes(extent);
      for (PieceIndex p = first_piece[extent]; p < first_piece[extent + 1]; ++p) {
        touches_.push_back({p, 0, is_written, is_birth});
      }
    }
    touch_begin_.push_back(static_cast<TouchIndex>(touches_.size()));
  }
  for (PatternExtent e = 0; e < pattern.extents(); ++e) {
    if (!is_touched[e])
      throw std::invalid_argument("no launch touches extent " + std::to_string(e) + " of the pattern");
    if (pattern.born(e) != kPersistent && !is_born[e]) {
      throw std::invalid_argument("launch " + std::to_string(pattern.born(e)) +
                                  " of the pattern does not touch extent " + std::to_string(e) +
                                  ", which is said to be born in it");
    }
  }

  // Backwards over two iterations: in the second round every piece's next touch is known. A next touch that is a birth
  // ends the life before it.
  struct Next {
    Tick tick = 0;
    bool is_birth = false;
  };
  std::vector<Next> next(pieces_.size());
  for (Tick tick = Tick{2} * n; tick-- > 0;) {
    const auto k = static_cast<LaunchIndex>(tick % n);
    for (TouchIndex t = touch_begin(k); t < touch_end(k); ++t) {
      PieceTouch& touch = touches_[t];
      Next& after = next[touch.piece];
      if (tick < n) touch.gap_ticks = after.is_birth ? 0 : static_cast<std::uint32_t>(after.tick - tick);
      after = {tick, touch.is_birth};
    }
  }

  // What lives across the iteration's start, then every birth and death.
  std::uint64_t live = 0;
  for (LaunchIndex k = 0; k < n; ++k) {
    for (TouchIndex t = touch_begin(k); t < touch_end(k); ++t) {
      if (k + touches_[t].gap_ticks >= n) live += pieces_[touches_[t].piece].bytes;
    }
  }
  for (LaunchIndex k = 0; k < n; ++k) {
    live_bytes_.push_back(live += birth_bytes_[k]);
    for (TouchIndex t = touch_begin(k); t < touch_end(k); ++t) {
      if (touches_[t].gap_ticks == 0) live -= pieces_[touches_[t].piece].bytes;
    }
  }
}

}  // namespace hmshim::policy
