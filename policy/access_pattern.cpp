#include "policy/access_pattern.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace hmshim::policy {

PatternExtent AccessPattern::add_extent(std::uint64_t bytes, LaunchIndex born) {
  if (bytes == 0) throw std::invalid_argument("extent " + std::to_string(extents()) + " of the pattern has no bytes");
  extent_bytes_.push_back(bytes);
  born_.push_back(born);
  return extents() - 1;
}

void AccessPattern::add_launch(std::uint64_t duration_ns, std::span<const ExtentTouch> touches) {
  const auto fail = [this](const ExtentTouch& touch, const char* why) {
    throw std::invalid_argument("launch " + std::to_string(launches()) + " of the pattern touches extent " +
                                std::to_string(touch.extent) + why);
  };
  std::vector<std::uint32_t> packed;
  packed.reserve(touches.size());
  for (const ExtentTouch& touch : touches) {
    if (touch.extent >= extents()) fail(touch, ", which is not there");
    packed.push_back(touch.extent << 1 | (touch.is_written ? 1U : 0U));
  }
  std::sort(packed.begin(), packed.end());
  for (std::size_t i = 1; i < packed.size(); ++i) {
    if (packed[i] >> 1 == packed[i - 1] >> 1) fail({packed[i] >> 1, false}, " twice");
  }
  touches_.insert(touches_.end(), packed.begin(), packed.end());
  touch_begin_.push_back(static_cast<std::uint32_t>(touches_.size()));
  durations_ns_.push_back(duration_ns);
}

std::size_t AccessPattern::memory_bytes() const noexcept {
  return durations_ns_.capacity() * sizeof durations_ns_[0] + touch_begin_.capacity() * sizeof touch_begin_[0] +
         touches_.capacity() * sizeof touches_[0] + extent_bytes_.capacity() * sizeof extent_bytes_[0] +
         born_.capacity() * sizeof born_[0];
}

}  // namespace hmshim::policy
