// What went past the library, and why: the first thing to read in a report when a program still runs out of memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "interpose/report.hpp"

namespace hmshim::interpose {

enum class Bypass : std::uint8_t {
  allocation_in_capture,  // a managed allocation is not a legal part of a capture: real device memory instead
  launch_in_capture,      // recorded into a graph, not run
  graph_launch,           // its kernels are not seen one by one
  unknown_parameters,     // a kernel whose parameter layout the driver does not tell
  unmanaged_device,       // allocated on a device that cannot migrate
  foreign_pool,           // from a memory pool that must be the driver's: shareable, or not of plain device memory
};
inline constexpr std::size_t kBypassCount = 6;

[[nodiscard]] std::string_view to_string(Bypass reason) noexcept;

class Bypasses {
 public:
  void count(Bypass reason, std::uint64_t bytes = 0) noexcept {
    Tally& tally = tallies_[static_cast<std::size_t>(reason)];
    tally.count.fetch_add(1, std::memory_order_relaxed);
    tally.bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  // Those that happened.
  [[nodiscard]] std::vector<BypassTally> tallies() const;

 private:
  struct Tally {
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint64_t> bytes{0};
  };
  std::array<Tally, kBypassCount> tallies_;
};

}  // namespace hmshim::interpose
