#include "interpose/hook_counts.hpp"

#include <algorithm>

namespace hmshim::interpose {

constinit std::array<detail::CountShard, detail::kCountShards> detail::count_shards{};

namespace {

constinit std::atomic<std::size_t> shards_claimed{0};

std::uint64_t sum(std::array<detail::Count, kHookCount> detail::CountShard::*counts, HookId id) noexcept {
  std::uint64_t total = 0;
  for (const detail::CountShard& shard : detail::count_shards) {
    total += (shard.*counts)[index_of(id)].load(std::memory_order_relaxed);
  }
  return total;
}

}  // namespace

detail::CountShard* detail::claim_count_shard() noexcept {
  return &count_shards[std::min(shards_claimed.fetch_add(1, std::memory_order_relaxed), kCountShards - 1)];
}

std::uint64_t hook_hits(HookId id) noexcept { return sum(&detail::CountShard::hits, id); }
std::uint64_t hook_bypasses(HookId id) noexcept { return sum(&detail::CountShard::bypasses, id); }

}  // namespace hmshim::interpose
