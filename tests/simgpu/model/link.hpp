#pragma once

#include <array>
#include <cstdint>

#include "tests/simgpu/model/profile.hpp"

namespace hmshim::simgpu::machine {

enum class Direction { kHostToDevice, kDeviceToHost };

/// Share of the bulk rate that a copy of `bytes` reaches on this profile's transfer-size curve.
[[nodiscard]] double curve_efficiency(const Profile& profile, std::uint64_t bytes);

/// The link between the host and one device: a queue per direction, in order of submission.
class Link {
 public:
  explicit Link(const Profile& profile) : profile_(&profile) {}

  /// Queues a copy that may not start before `earliest_ns`; returns its end. `whole_bytes` is the size of the transfer
  /// this is a piece of: it places the piece on the transfer-size curve.
  TimeNs schedule(Direction direction, std::uint64_t bytes, std::uint64_t whole_bytes, TimeNs earliest_ns,
                  Duplex duplex);

  /// When everything queued in a direction is through.
  [[nodiscard]] TimeNs free_at(Direction direction) const { return free_at_ns_[static_cast<std::size_t>(direction)]; }

 private:
  const Profile* profile_;
  std::array<TimeNs, 2> free_at_ns_{};
};

}  // namespace hmshim::simgpu::machine
