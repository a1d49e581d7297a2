// The arguments of a replayed launch: what it touches and for how long it runs, for the simulated GPU to read; to the
// library it is a kernel with pointers among its arguments, like any other.
#pragma once

#include <cstdint>

namespace hmshim::bench {

struct ReplayOperand {
  std::uint64_t address;
  std::uint64_t bytes_and_kind;  // bytes | kind << kReplayKindShift, kind as in simgpu_touch
};
inline constexpr int kReplayKindShift = 62;

template <int kOperands>
struct ReplayArguments {
  std::int64_t duration_ns;
  std::uint64_t operand_count;
  ReplayOperand operands[kOperands];
};

// Launches use the kernel with the least room that is enough: every word of the arguments costs the library a look.
inline constexpr int kFewOperands = 8;
inline constexpr int kSomeOperands = 32;
// All that 4 KiB of arguments hold (CUDA programming guide, kernel parameters).
inline constexpr int kMostOperands = 254;
static_assert(sizeof(ReplayArguments<kMostOperands>) <= 4096);

}  // namespace hmshim::bench
