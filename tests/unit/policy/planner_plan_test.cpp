#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "policy/planner.hpp"
#include "tests/unit/policy/planner_patterns.hpp"

namespace hmshim::policy {
namespace {

constexpr std::uint64_t kRoomy = std::uint64_t{1} << 40;

// Every schedule there is, by brute force.
std::uint64_t best_possible_ns(const PieceMap& map, const CostModel& cost, std::uint64_t capacity_bytes) {
  std::vector<TouchIndex> gaps;
  for (TouchIndex t = 0; t < map.touches().size(); ++t) {
    if (map.touches()[t].gap_ticks > 1) gaps.push_back(t);
  }
  std::uint64_t best_ns = std::numeric_limits<std::uint64_t>::max();
  for (std::uint32_t bits = 0; bits < 1U << gaps.size(); ++bits) {
    Schedule schedule;
    schedule.is_away.assign(map.touches().size(), 0);
    for (std::size_t i = 0; i < gaps.size(); ++i) schedule.is_away[gaps[i]] = bits >> i & 1;
    derive_schedule(map, cost, schedule);
    if (*std::max_element(schedule.base_bytes.begin(), schedule.base_bytes.end()) > capacity_bytes) continue;
    best_ns = std::min(best_ns, simulate(map, schedule, cost, capacity_bytes, 2, 4).iteration_ns);
  }
  return best_ns;
}

TEST(Planner, comes_within_five_percent_of_the_best_of_all_schedules_of_small_iterations) {
  for (const bool clean_copies : {true, false}) {
    for (const double gbps : {5.0, 20.0, 80.0}) {
      const AccessPattern pattern = layer_stack(4, 1, 200'000);
      CostModel cost = CostModel::ideal(gbps * 1e9);
      cost.clean_copies = clean_copies;
      const std::uint64_t capacity_bytes = 5 * kBlockBytes;
      const PieceMap map(pattern, capacity_bytes);
      const auto plan = make_plan(map, cost, capacity_bytes);
      ASSERT_TRUE(plan.has_value());
      const std::uint64_t plan_ns = simulate(map, plan->schedule, cost, capacity_bytes, 2, 4).iteration_ns;
      const std::uint64_t best_ns = best_possible_ns(map, cost, capacity_bytes);
      EXPECT_LE(static_cast<double>(plan_ns), 1.05 * static_cast<double>(best_ns)) << gbps << " GB/s " << clean_copies;
    }
  }
}

// As of an optimizer's state: touched once, away while the activations are there.
TEST(Planner, sends_away_right_after_its_use_what_is_needed_an_iteration_later) {
  AccessPattern pattern;
  const PatternExtent state = pattern.add_extent(4 * kBlockBytes, kPersistent);
  const PatternExtent activation = pattern.add_extent(4 * kBlockBytes, 0);
  for (int i = 0; i < 3; ++i) pattern.add_launch(1000, std::vector<ExtentTouch>{{activation, true}});
  pattern.add_launch(1000, std::vector<ExtentTouch>{{state, true}});
  const std::uint64_t capacity_bytes = 4 * kBlockBytes;
  const PieceMap map(pattern, capacity_bytes);
  CostModel cost = CostModel::ideal(10e9);
  cost.clean_copies = false;
  const auto plan = make_plan(map, cost, capacity_bytes);
  ASSERT_TRUE(plan.has_value());
  for (TouchIndex t = map.touch_begin(3); t < map.touch_end(3); ++t) EXPECT_EQ(plan->schedule.is_away[t], 1) << t;
  EXPECT_EQ(simulate(map, plan->schedule, cost, capacity_bytes, 2, 4).emergencies, 0U);
}

TEST(Planner, hides_all_migration_where_the_link_is_fast_enough) {
  const AccessPattern pattern = layer_stack(32, 8, 2'000'000);
  const PieceMap probe(pattern, kRoomy);
  const std::uint64_t capacity_bytes = probe.peak_live_bytes() / 2;
  const PieceMap map(pattern, capacity_bytes);
  const auto plan = make_plan(map, CostModel::ideal(25e9), capacity_bytes);
  ASSERT_TRUE(plan.has_value());
  EXPECT_GT(plan->cost.h2d_bytes, 0U);
  EXPECT_LE(static_cast<double>(plan->cost.iteration_ns), 1.005 * static_cast<double>(map.compute_ns()));
}

TEST(Planner, moves_nothing_when_everything_fits) {
  const AccessPattern pattern = layer_stack(8, 2, 1000);
  const PieceMap probe(pattern, kRoomy);
  const PieceMap map(pattern, probe.peak_live_bytes());
  const auto plan = make_plan(map, CostModel::ideal(1e9), probe.peak_live_bytes());
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->cost.iteration_ns, map.compute_ns());
  EXPECT_EQ(plan->cost.h2d_bytes + plan->cost.d2h_bytes, 0U);
  EXPECT_EQ(plan->evaluations, 1U);
}

TEST(Planner, says_no_where_one_launch_needs_more_than_the_device) {
  const AccessPattern pattern = layer_stack(8, 2, 1000);
  const PieceMap map(pattern, kRoomy);
  const std::uint64_t needed_bytes = map.touched_bytes(map.largest_launch());
  EXPECT_EQ(needed_bytes, 6 * kBlockBytes);  // a weight and two activations
  EXPECT_FALSE(make_plan(map, CostModel::ideal(1e9), needed_bytes - 1).has_value());
  EXPECT_TRUE(make_plan(map, CostModel::ideal(1e9), needed_bytes).has_value());
}

TEST(Planner, refuses_a_link_without_a_rate) {
  const AccessPattern pattern = layer_stack(2, 1, 1000);
  const PieceMap map(pattern, kRoomy);
  EXPECT_THROW(static_cast<void>(make_plan(map, CostModel::ideal(0), kRoomy)), std::invalid_argument);
}

TEST(Planner, makes_the_same_plan_twice) {
  const AccessPattern pattern = random_pattern(7, 200, 300);
  const PieceMap probe(pattern, kRoomy);
  const std::uint64_t capacity_bytes =
      std::max(probe.peak_live_bytes() / 2, probe.touched_bytes(probe.largest_launch()));
  const PieceMap map(pattern, capacity_bytes);
  const auto first = make_plan(map, CostModel::ideal(10e9), capacity_bytes);
  const auto second = make_plan(PieceMap(pattern, capacity_bytes), CostModel::ideal(10e9), capacity_bytes);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->schedule, second->schedule);
  EXPECT_EQ(first->cost.iteration_ns, second->cost.iteration_ns);
  EXPECT_EQ(first->evaluations, second->evaluations);
}

TEST(Planner, keeps_to_its_evaluations) {
  const AccessPattern pattern = layer_stack(16, 4, 50'000);
  const PieceMap probe(pattern, kRoomy);
  const std::uint64_t capacity_bytes = probe.peak_live_bytes() / 2;
  const PieceMap map(pattern, capacity_bytes);
  for (const std::uint32_t limit : {1U, 2U, 5U}) {
    const auto plan = make_plan(map, CostModel::ideal(5e9), capacity_bytes, limit);
    ASSERT_TRUE(plan.has_value());
    EXPECT_EQ(plan->evaluations, limit);
  }
}

TEST(Planner, pays_for_a_slower_or_shared_link_and_for_missing_levers) {
  const AccessPattern pattern = layer_stack(16, 8, 400'000);
  const PieceMap probe(pattern, kRoomy);
  const std::uint64_t capacity_bytes = probe.peak_live_bytes() / 2;
  const PieceMap map(pattern, capacity_bytes);
  const auto planned = [&](const CostModel& cost) { return make_plan(map, cost, capacity_bytes)->cost; };
  const CostModel full = CostModel::ideal(10e9);
  CostModel slow = CostModel::ideal(7e9), half_duplex = full, dirty = full, host_cost = full;
  half_duplex.full_duplex = false;
  dirty.clean_copies = false;
  host_cost.block_ns = 50'000;
  EXPECT_GT(planned(slow).iteration_ns, planned(full).iteration_ns);
  EXPECT_GT(planned(half_duplex).iteration_ns, planned(full).iteration_ns);
  EXPECT_GT(planned(host_cost).iteration_ns, planned(full).iteration_ns);
  EXPECT_GE(planned(dirty).iteration_ns, planned(full).iteration_ns);
  EXPECT_EQ(planned(dirty).d2h_bytes, planned(dirty).h2d_bytes);
}

TEST(Planner, never_exceeds_the_capacity) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const AccessPattern pattern = random_pattern(seed, 60, 80);
    const PieceMap probe(pattern, kRoomy);
    const std::uint64_t capacity_bytes =
        std::max(probe.peak_live_bytes() * 10 / 25, probe.touched_bytes(probe.largest_launch()));
    const PieceMap map(pattern, capacity_bytes);
    const auto plan = make_plan(map, CostModel::ideal(10e9), capacity_bytes);
    ASSERT_TRUE(plan.has_value());
    EXPECT_LE(plan->cost.peak_used_bytes, capacity_bytes) << "seed " << seed;
    EXPECT_GE(plan->cost.iteration_ns, map.compute_ns()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace hmshim::policy
