#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "policy/access_pattern.hpp"
#include "policy/cost_model.hpp"
#include "policy/schedule_pieces.hpp"
#include "policy/schedule_projection.hpp"
#include "tests/unit/policy/planner_patterns.hpp"

namespace hmshim::policy {
namespace {

constexpr std::uint64_t kRoomy = std::uint64_t{1} << 40;

TEST(AccessPattern, a_hundred_thousand_launches_fit_in_twenty_megabytes) {
  AccessPattern pattern;
  for (int i = 0; i < 50'000; ++i) pattern.add_extent(kBlockBytes, kPersistent);
  std::vector<ExtentTouch> touches;
  for (std::uint32_t k = 0; k < 100'000; ++k) {
    touches.clear();
    for (std::uint32_t i = 0; i < 6; ++i) touches.push_back({(k + 7919 * i) % 50'000, i == 0});
    pattern.add_launch(k, touches);
  }
  EXPECT_EQ(pattern.launches(), 100'000U);
  EXPECT_LT(pattern.memory_bytes(), 20'000'000U);
}

TEST(AccessPattern, gives_back_what_was_put_in) {
  AccessPattern pattern;
  pattern.add_extent(5, kPersistent);
  pattern.add_extent(7, 0);
  pattern.add_launch(11, std::vector<ExtentTouch>{{1, true}, {0, false}});
  ASSERT_EQ(pattern.touches(0), 2U);
  EXPECT_EQ(pattern.touch(0, 0).extent, 0U);
  EXPECT_FALSE(pattern.touch(0, 0).is_written);
  EXPECT_EQ(pattern.touch(0, 1).extent, 1U);
  EXPECT_TRUE(pattern.touch(0, 1).is_written);
  EXPECT_EQ(pattern.extent_bytes(1), 7U);
  EXPECT_EQ(pattern.born(1), 0U);
  EXPECT_EQ(pattern.duration_ns(0), 11U);
}

TEST(AccessPattern, refuses_what_no_iteration_can_be) {
  AccessPattern pattern;
  EXPECT_THROW(pattern.add_extent(0, kPersistent), std::invalid_argument);
  pattern.add_extent(1, kPersistent);
  EXPECT_THROW(pattern.add_launch(1, std::vector<ExtentTouch>{{1, false}}), std::invalid_argument);
  EXPECT_THROW(pattern.add_launch(1, std::vector<ExtentTouch>{{0, false}, {0, true}}), std::invalid_argument);
  EXPECT_EQ(pattern.launches(), 0U);
}

TEST(PieceMap, cuts_extents_into_whole_blocks_of_a_thousandth_of_the_capacity) {
  AccessPattern pattern;
  pattern.add_extent(10 * kBlockBytes + 1, kPersistent);
  pattern.add_launch(1, std::vector<ExtentTouch>{{0, false}});
  const PieceMap small(pattern, 1024 * kBlockBytes - 1);
  EXPECT_EQ(small.pieces().size(), 11U);
  EXPECT_EQ(small.pieces().back().bytes, 1U);
  const PieceMap large(pattern, 4 * 1024 * kBlockBytes);
  ASSERT_EQ(large.pieces().size(), 3U);
  EXPECT_EQ(large.pieces()[1].offset_bytes, 4 * kBlockBytes);
  EXPECT_EQ(large.pieces()[1].bytes, 4 * kBlockBytes);
}

TEST(PieceMap, knows_gaps_round_the_end_and_who_is_alive) {
  AccessPattern pattern;
  const auto weight = pattern.add_extent(100, kPersistent);
  const auto local = pattern.add_extent(10, 1);
  const auto carried = pattern.add_extent(1, 3);  // born in the last launch, dies in the next iteration's first
  pattern.add_launch(5, std::vector<ExtentTouch>{{weight, false}, {carried, false}});
  pattern.add_launch(6, std::vector<ExtentTouch>{{local, true}});
  pattern.add_launch(7, std::vector<ExtentTouch>{{local, false}, {weight, true}});
  pattern.add_launch(8, std::vector<ExtentTouch>{{carried, true}});
  const PieceMap map(pattern, kRoomy);
  const auto gap = [&](LaunchIndex launch, std::uint32_t i) {
    return map.touches()[map.touch_begin(launch) + i].gap_ticks;
  };
  EXPECT_EQ(gap(0, 0), 2U);  // weight
  EXPECT_EQ(gap(0, 1), 0U);  // carried dies
  EXPECT_EQ(gap(1, 0), 1U);  // local
  EXPECT_EQ(gap(2, 0), 2U);  // weight: extents are in order of their numbers
  EXPECT_EQ(gap(2, 1), 0U);  // local dies
  EXPECT_EQ(gap(3, 0), 1U);  // carried
  EXPECT_EQ(map.live_bytes(0), 101U);
  EXPECT_EQ(map.live_bytes(1), 110U);
  EXPECT_EQ(map.live_bytes(2), 110U);
  EXPECT_EQ(map.live_bytes(3), 101U);
  EXPECT_EQ(map.peak_live_bytes(), 110U);
  EXPECT_EQ(map.largest_launch(), 2U);
  EXPECT_EQ(map.touched_bytes(2), 110U);
  EXPECT_EQ(map.birth_bytes(1), 10U);
  EXPECT_EQ(map.compute_ns(), 26U);
  EXPECT_EQ(map.compute_ns(2, 5), 7U + 8U + 5U);
}

TEST(PieceMap, refuses_patterns_that_contradict_themselves) {
  AccessPattern empty;
  EXPECT_THROW(PieceMap(empty, kRoomy), std::invalid_argument);
  AccessPattern untouched;
  untouched.add_extent(1, kPersistent);
  untouched.add_launch(1, {});
  EXPECT_THROW(PieceMap(untouched, kRoomy), std::invalid_argument);
  AccessPattern born_elsewhere;
  born_elsewhere.add_extent(1, 1);
  born_elsewhere.add_launch(1, std::vector<ExtentTouch>{{0, true}});
  born_elsewhere.add_launch(1, {});
  EXPECT_THROW(PieceMap(born_elsewhere, kRoomy), std::invalid_argument);
}

TEST(Projection, agrees_with_plain_addition_round_the_end) {
  constexpr std::size_t kLaunches = 37;
  Sequence sequence(1);
  std::vector<std::uint64_t> bytes(kLaunches);
  for (auto& value : bytes) value = sequence.below(1000);
  Projection projection(bytes);
  std::vector<std::int64_t> plain(bytes.begin(), bytes.end());
  for (int step = 0; step < 2000; ++step) {
    const Tick begin = sequence.below(10 * kLaunches), end = begin + sequence.below(kLaunches + 1);
    const auto change = static_cast<std::int64_t>(sequence.below(200)) - 90;
    projection.add(begin, end, change);
    for (Tick tick = begin; tick < end; ++tick) plain[tick % kLaunches] += change;
    const Tick reset = sequence.below(kLaunches);
    projection.set(reset, 400);
    plain[reset] = 400;
    const Tick from = sequence.below(10 * kLaunches), to = from + sequence.below(kLaunches + 1);
    std::int64_t expected = from == to ? 0 : plain[from % kLaunches];
    for (Tick tick = from; tick < to; ++tick) expected = std::max(expected, plain[tick % kLaunches]);
    ASSERT_EQ(projection.max(from, to), expected) << "step " << step;
  }
}

TEST(CostModel, counts_the_copy_each_block_and_each_call) {
  CostModel cost = CostModel::ideal(1e9);
  EXPECT_EQ(cost.transfer_ns(Direction::ToDevice, 1500), 1500U);
  cost.d2h_bytes_per_s = 3e9;
  EXPECT_EQ(cost.transfer_ns(Direction::ToHost, 1000), 334U);  // rounded up
  cost.call_ns = 10'000;
  cost.block_ns = 100;
  EXPECT_EQ(cost.transfer_ns(Direction::ToDevice, 2 * kBlockBytes + 1), 10'000U + 300U + 2 * kBlockBytes + 1U);
}

}  // namespace
}  // namespace hmshim::policy
