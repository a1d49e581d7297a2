// Extents of a pool: what the guest has freed keeps its device memory and is the first to lose it.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "policy/engine.hpp"

namespace hmshim::policy {
namespace {

constexpr std::uint64_t kBudgetBytes = 8 * kBlockBytes;

class RetiredExtents : public testing::TestWithParam<bool> {
 protected:
  void allocate(ExtentId id, std::uint64_t blocks) { engine.allocated({id, blocks * kBlockBytes}); }
  void revive(ExtentId id, std::uint64_t blocks) { engine.revived({id, blocks * kBlockBytes}); }
  std::vector<Action> launch(std::vector<ExtentId> touched) {
    Actions actions;
    engine.launch({++tick, 1, tick, touched}, actions);
    return actions;
  }
  static std::vector<ExtentId> of_kind(ActionKind kind, const std::vector<Action>& actions) {
    std::vector<ExtentId> extents;
    for (const Action& action : actions) {
      if (action.kind == kind) extents.push_back(action.extent);
    }
    return extents;
  }

  Engine engine{{"on_demand", kBudgetBytes, GetParam()}};
  Tick tick = 0;
};
INSTANTIATE_TEST_SUITE_P(Discard, RetiredExtents, testing::Bool());

TEST_P(RetiredExtents, stay_resident_and_cost_nothing_to_use_again) {
  allocate(0, 3);
  launch({0});
  engine.retired({0});
  EXPECT_EQ(engine.resident_bytes(), 3 * kBlockBytes);
  EXPECT_EQ(engine.footprint_bytes(), 0u);
  EXPECT_FALSE(engine.is_resident(0)) << "it is nobody's";
  EXPECT_TRUE(launch({0}).empty()) << "a stale pointer";
  revive(0, 3);
  EXPECT_TRUE(engine.is_resident(0));
  EXPECT_TRUE(launch({0}).empty());
  EXPECT_EQ(engine.resident_bytes(), 3 * kBlockBytes);
  EXPECT_EQ(engine.footprint_bytes(), 3 * kBlockBytes);
  EXPECT_EQ(engine.totals().h2d_demand_bytes, 0u);
}

TEST_P(RetiredExtents, are_populated_when_their_pool_says_so_whatever_the_books_say) {
  allocate(0, 3);
  launch({0});
  engine.retired({0});
  revive(0, 3);
  Actions actions;
  engine.populate(0, actions);
  EXPECT_EQ(of_kind(ActionKind::Prefetch, actions), std::vector<ExtentId>{0});
  EXPECT_EQ(engine.resident_bytes(), 3 * kBlockBytes);
  EXPECT_EQ(engine.totals().h2d_prefetch_bytes, 0u);
}

TEST_P(RetiredExtents, stay_under_a_plan_up_to_what_it_leaves_them) {
  for (const ExtentId id : {0, 1, 2}) {
    allocate(id, 2);
    launch({id});
  }
  for (const ExtentId id : {1, 0, 2}) engine.retired({id});
  Actions actions;
  engine.follow({++tick, 1, tick, {}}, false, 3 * kBlockBytes, actions);
  EXPECT_EQ(of_kind(ActionKind::Discard, actions),
            GetParam() ? (std::vector<ExtentId>{1, 0}) : std::vector<ExtentId>{});
  EXPECT_EQ(engine.resident_bytes(), (GetParam() ? 2 : 6) * kBlockBytes);
}

TEST_P(RetiredExtents, are_discarded_before_anything_live_is_demoted_or_else_demoted_after_it) {
  for (ExtentId id = 0; id < 4; ++id) allocate(id, 2);
  for (ExtentId id = 0; id < 4; ++id) launch({id});
  engine.retired({2});
  engine.retired({1});
  allocate(4, 5);
  const auto actions = launch({4});
  if (GetParam()) {
    EXPECT_EQ(of_kind(ActionKind::Discard, actions), (std::vector<ExtentId>{2, 1})) << "the longest retired first";
    EXPECT_EQ(of_kind(ActionKind::Demote, actions), (std::vector<ExtentId>{0}));
    EXPECT_EQ(engine.totals().discarded_bytes, 4 * kBlockBytes);
    EXPECT_EQ(engine.totals().d2h_demote_bytes, 2 * kBlockBytes);
  } else {
    EXPECT_TRUE(of_kind(ActionKind::Discard, actions).empty());
    EXPECT_EQ(of_kind(ActionKind::Demote, actions), (std::vector<ExtentId>{0, 3, 2}));
  }
  EXPECT_LE(engine.resident_bytes(), kBudgetBytes);
}

TEST_P(RetiredExtents, on_the_host_are_dropped_there_so_that_they_need_not_come_back) {
  allocate(0, 4);
  allocate(1, 8);
  launch({0});
  launch({1});  // demotes 0
  engine.retired({0});
  const auto actions = launch({1});
  EXPECT_EQ(of_kind(ActionKind::Discard, actions), GetParam() ? std::vector<ExtentId>{0} : std::vector<ExtentId>{});
  revive(0, 4);
  launch({0});
  EXPECT_EQ(engine.totals().h2d_demand_bytes, GetParam() ? 0u : 4 * kBlockBytes);
}

TEST_P(RetiredExtents, populating_one_prefetches_no_bytes_and_makes_room) {
  allocate(0, 4);
  allocate(1, 4);
  allocate(2, 4);
  for (ExtentId id = 0; id < 3; ++id) launch({id});  // 0 has been demoted
  Actions actions;
  engine.populate(0, actions);
  EXPECT_EQ(of_kind(ActionKind::Demote, actions), (std::vector<ExtentId>{1}));
  EXPECT_EQ(of_kind(ActionKind::Prefetch, actions), (std::vector<ExtentId>{0}));
  EXPECT_TRUE(engine.is_resident(0));
  EXPECT_LE(engine.resident_bytes(), kBudgetBytes);
}

TEST_P(RetiredExtents, keep_their_place_when_they_are_cut_and_joined) {
  allocate(0, 6);
  launch({0});
  engine.retired({0});
  engine.reshaped(std::vector<ExtentId>{0}, std::vector<Allocated>{{0, 2 * kBlockBytes}, {1, 4 * kBlockBytes}});
  EXPECT_EQ(engine.resident_bytes(), 6 * kBlockBytes);
  revive(1, 4);
  EXPECT_TRUE(engine.is_resident(1));
  engine.retired({1});
  engine.reshaped(std::vector<ExtentId>{0, 1}, std::vector<Allocated>{{1, 6 * kBlockBytes}});
  EXPECT_EQ(engine.resident_bytes(), 6 * kBlockBytes);
  engine.freed({1});
  EXPECT_EQ(engine.resident_bytes(), 0u);
}

TEST_P(RetiredExtents, never_exceed_the_budget_with_the_live_in_random_programs) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr ExtentId kExtents = 16;
  std::vector<int> state(kExtents, 0);  // 0 free, 1 live, 2 retired
  std::uint64_t live_bytes = 0;
  for (int step = 0; step < 5000; ++step) {
    const ExtentId id = random() % kExtents;
    const std::uint64_t blocks = 1 + id % 3;
    switch (random() % 4) {
      case 0:
        if (state[id] == 1) break;
        state[id] == 2 ? revive(id, blocks) : allocate(id, blocks);
        state[id] = 1;
        live_bytes += blocks * kBlockBytes;
        break;
      case 1:
        if (state[id] != 1) break;
        engine.retired({id});
        state[id] = 2;
        live_bytes -= blocks * kBlockBytes;
        break;
      case 2:
        if (state[id] != 2) break;
        engine.freed({id});
        state[id] = 0;
        break;
      default:
        launch({id, static_cast<ExtentId>(random() % kExtents)});
        ASSERT_LE(engine.resident_bytes(), kBudgetBytes);
    }
    ASSERT_EQ(engine.footprint_bytes(), live_bytes);
  }
}

TEST_P(RetiredExtents, of_which_only_a_part_is_on_the_device_lose_it_at_the_next_launch) {
  allocate(0, 5);
  allocate(1, 4);
  launch({0});
  launch({1});  // 0 has to leave
  engine.retired({0});
  engine.retired({1});
  const std::vector<ExtentId> before{0, 1};
  const std::vector<Allocated> joined{{2, 9 * kBlockBytes}};
  engine.reshaped(before, joined);
  const std::vector<ExtentId> whole{2};
  const std::vector<Allocated> parts{{3, 5 * kBlockBytes}, {4, 4 * kBlockBytes}};
  engine.reshaped(whole, parts);
  EXPECT_EQ(engine.resident_bytes(), 0u);
  const ActionKind leaves = GetParam() ? ActionKind::Discard : ActionKind::Demote;
  EXPECT_EQ(of_kind(leaves, launch({})), (std::vector<ExtentId>{3, 4}));
  EXPECT_TRUE(launch({}).empty());
}

}  // namespace
}  // namespace hmshim::policy
