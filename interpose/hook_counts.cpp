#include "interpose/hook_counts.hpp"

namespace hmshim::interpose {

constinit std::array<detail::CountShard, detail::kCountShards> detail::count_shards{};

std::uint64_t hook_hits(HookId id) noexcept {
  std::uint64_t sum = 0;
  for (const detail::CountShard& shard : detail::count_shards)
    sum += shard.hits[index_of(id)].load(std::memory_order_relaxed);
  return sum;
}

std::uint64_t hook_bypasses(HookId id) noexcept {
  std::uint64_t sum = 0;
  for (const detail::CountShard& shard : detail::count_shards) {
    sum += shard.bypasses[index_of(id)].load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace hmshim::interpose
