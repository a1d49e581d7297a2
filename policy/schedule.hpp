// What to move, without saying when: the plan of a steady iteration. The executor decides when, by what has completed.
#pragma once

#include <cstdint>
#include <vector>

namespace hmshim::policy {

// The first two vectors are parallel to PieceMap::touches(), the last has one entry a launch.
struct Schedule {
  // The piece spends the gap after this touch off the device.
  std::vector<std::uint8_t> is_away;
  // Where above zero: this touch is the last write before an away gap so many ticks later. Copied to the host in
  // between, while the link has nothing else to do, the piece leaves for nothing then.
  std::vector<std::uint32_t> preclean_ticks;
  // Bytes on the device while the launch runs, if every away gap is empty from end to end.
  std::vector<std::uint64_t> base_bytes;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

}  // namespace hmshim::policy
