// How often each wrapped entry point was called by the guest: the report's hook coverage.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "interpose/hook_id.hpp"

namespace hmshim::interpose {

// Calls the handler saw, and calls that went straight to the driver because the gate was closed. Calls made from inside
// a handler are hmshim's own and count as neither. Sums over all threads; monotonic.
[[nodiscard]] std::uint64_t hook_hits(HookId id) noexcept;
[[nodiscard]] std::uint64_t hook_bypasses(HookId id) noexcept;

namespace detail {

// Threads spread over shards, so that launches from several threads do not fight for one cache line.
struct alignas(64) CountShard {
  std::array<std::atomic<std::uint64_t>, kHookCount> hits{};
  std::array<std::atomic<std::uint64_t>, kHookCount> bypasses{};
};
inline constexpr std::size_t kCountShards = 8;
extern constinit std::array<CountShard, kCountShards> count_shards;

[[nodiscard]] inline CountShard& count_shard() noexcept {
  // Stacks tell threads apart without a register of them; default stacks are 8 MiB.
  const auto stack = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  return count_shards[(stack >> 23) % kCountShards];
}

}  // namespace detail

inline void count_hit(HookId id) noexcept {
  detail::count_shard().hits[index_of(id)].fetch_add(1, std::memory_order_relaxed);
}
inline void count_bypass(HookId id) noexcept {
  detail::count_shard().bypasses[index_of(id)].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace hmshim::interpose
