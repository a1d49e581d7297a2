#include "interpose/bypass.hpp"

namespace hmshim::interpose {

std::string_view to_string(Bypass reason) noexcept {
  switch (reason) {
    case Bypass::allocation_in_capture:
      return "allocation_in_capture";
    case Bypass::launch_in_capture:
      return "launch_in_capture";
    case Bypass::graph_launch:
      return "graph_launch";
    case Bypass::unknown_parameters:
      return "unknown_parameters";
    case Bypass::unmanaged_device:
      return "unmanaged_device";
    case Bypass::foreign_pool:
      return "foreign_pool";
  }
  return "unknown";
}

std::vector<BypassTally> Bypasses::tallies() const {
  std::vector<BypassTally> happened;
  for (std::size_t i = 0; i < kBypassCount; ++i) {
    const std::uint64_t count = tallies_[i].count.load(std::memory_order_relaxed);
    if (count > 0)
      happened.push_back({to_string(static_cast<Bypass>(i)), count, tallies_[i].bytes.load(std::memory_order_relaxed)});
  }
  return happened;
}

}  // namespace hmshim::interpose
