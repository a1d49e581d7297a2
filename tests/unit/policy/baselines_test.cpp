// The baselines on a sweep over 60 blocks with room for 40, seen through the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "policy/engine.hpp"

namespace hmshim::policy {
namespace {

constexpr std::uint32_t kExtents = 60;
constexpr std::uint64_t kBudget = 40 * kBlockBytes;

struct Round {
  std::uint64_t prefetched_blocks = 0;
  std::uint64_t demanded_blocks = 0;
  std::uint64_t demoted_blocks = 0;
  std::uint32_t launches_that_waited = 0;  // whose own extent was not there before
  std::uint64_t most_resident_bytes = 0;
};

// The last of `rounds` rounds in which launch k touches extent k.
Round sweep(std::string_view policy, int rounds) {
  Engine engine({.policy = policy, .budget_bytes = kBudget});
  for (ExtentId id = 0; id < kExtents; ++id) engine.allocated({id, kBlockBytes, id});
  Round last;
  Tick tick = 0;
  for (int round = 0; round < rounds; ++round) {
    last = {};
    const MigrationTotals before = engine.totals();
    for (ExtentId id = 0; id < kExtents; ++id) {
      Actions actions;
      if (!engine.is_resident(id)) ++last.launches_that_waited;
      engine.launch({.tick = ++tick, .signature = 1 + id, .time_ns = 0, .touched = {&id, 1}}, actions);
      last.most_resident_bytes = std::max(last.most_resident_bytes, engine.resident_bytes());
    }
    last.prefetched_blocks = (engine.totals().h2d_prefetch_bytes - before.h2d_prefetch_bytes) / kBlockBytes;
    last.demanded_blocks = (engine.totals().h2d_demand_bytes - before.h2d_demand_bytes) / kBlockBytes;
    last.demoted_blocks = (engine.totals().d2h_demote_bytes - before.d2h_demote_bytes) / kBlockBytes;
  }
  return last;
}

TEST(Baselines, next_touch_fetches_everything_before_it_is_touched) {
  const Round round = sweep("next_touch", 8);
  EXPECT_EQ(round.launches_that_waited, 0U);
  EXPECT_EQ(round.demanded_blocks, 0U);
  EXPECT_EQ(round.prefetched_blocks, kExtents);  // the least recently touched is always the next that is needed
  EXPECT_EQ(round.demoted_blocks, kExtents);
  EXPECT_LE(round.most_resident_bytes, kBudget);
}

TEST(Baselines, belady_keeps_what_is_used_soonest) {
  const Round round = sweep("belady", 8);
  EXPECT_EQ(round.launches_that_waited, 0U);
  EXPECT_EQ(round.demanded_blocks, 0U);
  // No schedule gets by with less than what does not fit.
  EXPECT_LT(round.prefetched_blocks, kExtents);
  EXPECT_GE(round.prefetched_blocks, kExtents - 40);
  EXPECT_LE(round.most_resident_bytes, kBudget);
}

TEST(Baselines, driver_asks_for_nothing) {
  const Round round = sweep("driver", 3);
  EXPECT_EQ(round.prefetched_blocks + round.demoted_blocks, 0U);
}

TEST(Baselines, prefetch_at_alloc_prefetches_what_was_never_touched_and_faults_what_comes_back) {
  Engine engine({.policy = "prefetch_at_alloc", .budget_bytes = kBlockBytes});
  const std::vector<ExtentId> ids{0, 1};
  for (const ExtentId id : ids) engine.allocated({id, kBlockBytes, id});
  const auto launch = [&](ExtentId id) {
    Actions actions;
    engine.launch({.tick = 0, .signature = 1, .time_ns = 0, .touched = {&id, 1}}, actions);
    return actions;
  };
  Actions first = launch(0);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].kind, ActionKind::Prefetch);
  static_cast<void>(launch(1));
  const Actions back = launch(0);
  EXPECT_EQ(std::count_if(back.begin(), back.end(), [](Action a) { return a.kind == ActionKind::Prefetch; }), 0);
  EXPECT_EQ(engine.totals().h2d_demand_bytes, kBlockBytes);
}

}  // namespace
}  // namespace hmshim::policy
