// How often each wrapped entry point was called by the guest: the report's hook coverage.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "interpose/hook_id.hpp"

namespace hmshim::interpose {

// Calls the handler saw, and calls that went straight to the driver because the gate was closed. Calls made from inside
// a handler are hmshim's own and count as neither. Sums over all threads, those that have ended included; monotonic.
[[nodiscard]] std::uint64_t hook_hits(HookId id) noexcept;
[[nodiscard]] std::uint64_t hook_bypasses(HookId id) noexcept;

namespace detail {

using Count = std::atomic<std::uint64_t>;

struct alignas(64) CountShard {
  std::array<Count, kHookCount> hits{};
  std::array<Count, kHookCount> bypasses{};
};

// The first threads of a process that call the driver have a shard each, for life: a locked addition costs more than
// all else that a wrapper does. Later threads share the last one.
inline constexpr std::size_t kCountShards = 32;
extern constinit std::array<CountShard, kCountShards> count_shards;
[[gnu::tls_model("initial-exec")]] inline constinit thread_local CountShard* count_shard = nullptr;
CountShard* claim_count_shard() noexcept;

inline void add_one(std::array<Count, kHookCount> CountShard::*counts, HookId id) noexcept {
  CountShard* shard = count_shard;
  if (shard == nullptr) [[unlikely]]
    shard = count_shard = claim_count_shard();
  Count& count = (shard->*counts)[index_of(id)];
  if (shard == &count_shards.back()) [[unlikely]] {
    count.fetch_add(1, std::memory_order_relaxed);
  } else {
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
}

}  // namespace detail

inline void count_hit(HookId id) noexcept { detail::add_one(&detail::CountShard::hits, id); }
inline void count_bypass(HookId id) noexcept { detail::add_one(&detail::CountShard::bypasses, id); }

}  // namespace hmshim::interpose
