#include "tests/simgpu/model/link.hpp"

#include <algorithm>
#include <cmath>

namespace hmshim::simgpu::machine {
namespace {

// Only +, -, *, / and rounding on doubles: IEEE 754 defines those to the bit on every machine, unlike most of libm.
TimeNs round_ns(double ns) { return std::llround(ns); }

}  // namespace

double curve_efficiency(const Profile& profile, std::uint64_t bytes) {
  const auto& curve = profile.link_curve;
  if (bytes <= curve.front().bytes) {
    // Below the first point the time of a copy stays that of the first point: latency, not bandwidth.
    return curve.front().efficiency * static_cast<double>(bytes) / static_cast<double>(curve.front().bytes);
  }
  const auto above = std::find_if(curve.begin(), curve.end(), [&](const CurvePoint& p) { return p.bytes >= bytes; });
  if (above == curve.end()) return curve.back().efficiency;
  const auto below = above - 1;
  const double share = static_cast<double>(bytes - below->bytes) / static_cast<double>(above->bytes - below->bytes);
  return below->efficiency + share * (above->efficiency - below->efficiency);
}

TimeNs Link::schedule(Direction direction, std::uint64_t bytes, std::uint64_t whole_bytes, TimeNs earliest_ns,
                      Duplex duplex) {
  if (bytes == 0) return earliest_ns;
  const bool is_h2d = direction == Direction::kHostToDevice;
  TimeNs& own_free = free_at_ns_[static_cast<std::size_t>(direction)];
  TimeNs& other_free = free_at_ns_[is_h2d ? 1 : 0];
  // GB/s are bytes per nanosecond.
  const double bulk = is_h2d ? profile_->link_h2d_gbps : profile_->link_d2h_gbps;
  const double both = profile_->link_h2d_gbps + profile_->link_d2h_gbps;
  const double efficiency = curve_efficiency(*profile_, whole_bytes);
  const double alone_ns = static_cast<double>(bytes) / (bulk * efficiency);

  TimeNs start = std::max(earliest_ns, own_free);
  if (duplex == Duplex::kSerialised) start = std::max(start, other_free);
  // While both directions are busy each keeps this share of its rate. What is queued the other way goes on as if alone
  // until now: this copy slows it down until one of the two ends, and the delay is paid at the other queue's tail.
  const double shared = std::min(1.0, profile_->link_total_gbps / both);
  const auto other_alone_ns = static_cast<double>(std::max<TimeNs>(other_free - start, 0));
  const double together_ns = std::min(other_alone_ns, alone_ns) / shared;
  own_free = start + round_ns(together_ns + (alone_ns - together_ns * shared));
  other_free += round_ns(together_ns * (1.0 - shared));
  return own_free;
}

}  // namespace hmshim::simgpu::machine
