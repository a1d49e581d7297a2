#include "interpose/bypass.hpp"

namespace hmshim::interpose {

std::vector<BypassTally> Bypasses::tallies() const {
  std::vector<BypassTally> happened;
  for (std::size_t i = 0; i < tallies_.size(); ++i) {
    const std::uint64_t count = tallies_[i].count.load(std::memory_order_relaxed);
    if (count > 0) happened.push_back({kBypassNames[i], count, tallies_[i].bytes.load(std::memory_order_relaxed)});
  }
  return happened;
}

}  // namespace hmshim::interpose
