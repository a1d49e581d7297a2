// Exact victims and bytes of policy on_demand, seen through the engine. Extents are of one block unless said.
#include <gtest/gtest.h>

#include <vector>

#include "policy/engine.hpp"

namespace hmshim::policy {
namespace {

constexpr std::uint64_t kBlock = kBlockBytes;

class OnDemand : public testing::Test {
 protected:
  // Extents 0 .. blocks.size() - 1.
  void start(std::uint64_t budget_blocks, const std::vector<std::uint64_t>& blocks) {
    engine_.set_budget(budget_blocks * kBlock);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      engine_.allocated({static_cast<ExtentId>(i), blocks[i] * kBlock});
    }
  }
  // What the launch demands, as "-e" for demote and "+e" for prefetch, in order.
  std::vector<int> launch(const std::vector<ExtentId>& touched) { return perform(&Engine::launch, touched); }
  std::vector<int> copy(const std::vector<ExtentId>& touched) { return perform(&Engine::copy, touched); }

  Engine engine_{{.policy = "on_demand"}};

 private:
  std::vector<int> perform(void (Engine::*call)(const Launch&, Actions&), const std::vector<ExtentId>& touched) {
    Actions actions;
    (engine_.*call)({.tick = ++tick_, .signature = 1, .time_ns = tick_, .touched = touched}, actions);
    std::vector<int> result;
    for (const Action& action : actions) {
      const int extent = static_cast<int>(action.extent);
      result.push_back(action.kind == ActionKind::Demote ? -extent : extent);
    }
    return result;
  }
  Tick tick_ = 0;
};

using Demands = std::vector<int>;

TEST_F(OnDemand, asks_for_nothing_while_everything_fits) {
  start(3, {1, 1, 1});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(launch({0, 1, 2}), Demands{});
  EXPECT_EQ(engine_.resident_bytes(), 3 * kBlock);
  EXPECT_EQ(engine_.totals().h2d_demand_bytes, 0U);
}

TEST_F(OnDemand, demotes_the_least_recently_touched_not_the_first_that_came_in) {
  start(3, {1, 1, 1, 1});
  launch({1});
  launch({2});
  launch({3});
  launch({1});  // the driver's list, ordered by migration, would still have 1 first
  EXPECT_EQ(launch({0}), Demands{-2});
  EXPECT_FALSE(engine_.is_resident(2));
  EXPECT_TRUE(engine_.is_resident(1));
}

TEST_F(OnDemand, demotes_no_more_than_the_launch_needs) {
  start(4, {3, 1, 1, 1, 1});
  launch({1, 2, 3, 4});
  EXPECT_EQ(launch({0}), (Demands{-1, -2, -3}));
  EXPECT_EQ(engine_.resident_bytes(), 4 * kBlock);
  EXPECT_EQ(engine_.totals().demotions, 3U);
  EXPECT_EQ(engine_.totals().d2h_demote_bytes, 3 * kBlock);
}

TEST_F(OnDemand, a_cyclic_sweep_over_more_than_the_budget_misses_every_time) {
  start(2, {1, 1, 1});
  launch({0});
  launch({1});
  EXPECT_EQ(launch({2}), Demands{0});  // -0: extent 0
  EXPECT_EQ(launch({0}), Demands{-1});
  EXPECT_EQ(launch({1}), Demands{-2});
  EXPECT_EQ(launch({2}), Demands{0});
  EXPECT_EQ(engine_.totals().h2d_demand_bytes, 3 * kBlock);
  EXPECT_EQ(engine_.totals().d2h_demote_bytes, 4 * kBlock);
}

TEST_F(OnDemand, never_demotes_what_the_launch_names) {
  start(2, {1, 1, 1});
  launch({1, 2});
  EXPECT_EQ(launch({1, 0}), Demands{-2});
  EXPECT_TRUE(engine_.is_resident(1));
}

TEST_F(OnDemand, a_launch_larger_than_the_budget_is_an_excursion_that_empties_the_device) {
  start(2, {1, 1, 1, 1});
  launch({3});
  EXPECT_EQ(launch({0, 1, 2}), Demands{-3});
  EXPECT_EQ(engine_.resident_bytes(), 3 * kBlock);
  EXPECT_EQ(engine_.totals().budget_excursions, 1U);
  EXPECT_EQ(launch({3}), (Demands{0, -1}));
  EXPECT_EQ(engine_.resident_bytes(), 2 * kBlock);
  EXPECT_EQ(engine_.totals().budget_excursions, 1U);
}

TEST_F(OnDemand, a_copy_prefetches_what_is_absent_after_making_room) {
  start(2, {1, 1, 1});
  launch({1, 2});
  EXPECT_EQ(copy({2, 0}), (Demands{-1, 0}));
  EXPECT_EQ(engine_.totals().h2d_prefetch_bytes, 0U);  // 0 held no data yet
  EXPECT_EQ(copy({1}), (Demands{-2, 1}));
  EXPECT_EQ(engine_.totals().h2d_prefetch_bytes, kBlock);
  EXPECT_EQ(engine_.totals().h2d_demand_bytes, 0U);
}

TEST_F(OnDemand, a_smaller_budget_takes_effect_at_the_next_launch) {
  start(4, {1, 1, 1, 1});
  launch({1, 2, 3, 0});
  engine_.set_budget(2 * kBlock);
  EXPECT_EQ(engine_.resident_bytes(), 4 * kBlock);
  EXPECT_EQ(launch({1}), (Demands{-2, -3}));
  EXPECT_EQ(engine_.resident_bytes(), 2 * kBlock);
}

TEST_F(OnDemand, a_freed_extent_makes_room_and_is_no_victim) {
  start(2, {1, 1, 1});
  launch({1});
  launch({2});
  engine_.freed({1});
  EXPECT_EQ(launch({0}), Demands{});
  EXPECT_EQ(engine_.footprint_bytes(), 2 * kBlock);
  EXPECT_EQ(engine_.resident_bytes(), 2 * kBlock);
}

}  // namespace
}  // namespace hmshim::policy
