// What a policy is told. Plain data in logical time; the order of the calls is the order of the guest's calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "policy/vocabulary.hpp"

namespace hmshim::policy {

// A managed allocation came into being. It is resident nowhere until first touched.
struct Allocated {
  ExtentId extent;
  std::uint64_t bytes;  // multiple of kBlockBytes
};

// The extents one launch may name: the 8-byte words of the largest parameter buffer, 4 KiB (CUDA programming guide,
// kernel parameters).
inline constexpr std::size_t kMaxTouched = 512;

struct Freed {
  ExtentId extent;
};

// What only a replay can know beforehand: a yardstick's knowledge (policies/g10.cpp), nobody else's.
struct Foreknowledge {
  std::uint64_t last_launch_ns = 0;  // how long the launch before this one runs
  double h2d_bytes_per_s = 0;        // of the link
  double d2h_bytes_per_s = 0;
};

// A kernel launch, a copy or a memset: the extents it names will be accessed when the guest's stream reaches it.
struct Launch {
  Tick tick;
  std::uint64_t signature;  // kernel, grid, block, shared memory, hashed: what identifies it across iterations
  std::uint64_t time_ns;    // host clock at enqueue; only differences are meaningful; 0: not read
  std::span<const ExtentId> touched;  // at most kMaxTouched; an extent may appear more than once
  std::uint8_t stream = 0;            // the guest's streams, numbered; kOtherStream where numbers have run out
  bool is_part = false;     // goes to the driver together with the launch before it: a graph that names many extents
  bool is_planned = false;  // a plan brings what it names
  const Foreknowledge* foreknowledge = nullptr;  // null on a real device
};

inline constexpr std::uint8_t kOtherStream = 0xFF;

}  // namespace hmshim::policy
