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
#define BYPASS(name, sentence) name,
#include "interpose/bypasses.def"
#undef BYPASS
};

// The names, indexed by Bypass.
inline constexpr std::string_view kBypassNames[] = {
#define BYPASS(name, sentence) #name,
#include "interpose/bypasses.def"
#undef BYPASS
};

[[nodiscard]] constexpr std::string_view to_string(Bypass reason) noexcept {
  return kBypassNames[static_cast<std::size_t>(reason)];
}

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
  std::array<Tally, std::size(kBypassNames)> tallies_;
};

}  // namespace hmshim::interpose
