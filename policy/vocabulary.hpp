// The words every layer shares: identities, quantities and reasons. No CUDA, no clock, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hmshim::policy {

// One byte range the policies decide about as a whole. Dense, reused after Freed: an index, not a history.
using ExtentId = std::uint32_t;
inline constexpr ExtentId kNoExtent = ~ExtentId{0};

// Launch ordinal: the logical clock. Every launch and every copy that names an extent is one tick.
using Tick = std::uint64_t;

// 2 MiB: the unit in which the driver migrates and evicts (UVM_VA_BLOCK_BITS, nvidia-uvm uvm_va_block_types.h).
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{2} << 20;

[[nodiscard]] constexpr std::uint64_t round_up_to_block(std::uint64_t bytes) noexcept {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

}  // namespace hmshim::policy
