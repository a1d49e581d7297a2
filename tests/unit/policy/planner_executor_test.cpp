// The executor under a driver that trusts it in nothing: whatever the schedule says, memory is never overdrawn, nothing
// absent is touched, no contents are lost, and the iteration goes on.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include "policy/planner_select.hpp"
#include "policy/schedule_executor.hpp"
#include "policy/schedule_simulation.hpp"
#include "tests/unit/policy/planner_patterns.hpp"

namespace hmshim::policy {
namespace {

// Keeps its own account of every piece from what the executor says, with durations of its own choice.
class Referee {
 public:
  Referee(const PieceMap& map, const Schedule& schedule, const CostModel& cost, std::uint64_t capacity_bytes,
          std::uint64_t seed)
      : map_(map),
        cost_(cost),
        capacity_bytes_(capacity_bytes),
        executor_(map, schedule, cost, capacity_bytes),
        sequence_(seed),
        versions_(map.pieces().size(), {0, 0}) {
    // The contract: it begins with every piece where the schedule wants it.
    for (LaunchIndex k = 0; k < map.launches(); ++k) {
      for (TouchIndex t = map.touch_begin(k); t < map.touch_end(k); ++t) {
        const PieceTouch& touch = map.touches()[t];
        if (k + touch.gap_ticks >= map.launches() && schedule.is_away[t] == 0) put(touch.piece);
      }
    }
  }

  // Runs the launches in order; each event comes at a random moment among those under way.
  void run(Tick launches) {
    while (executor_.tick() < launches) {
      const bool has_started = offer_starts();
      const bool is_busy = is_running_ || fetching_ || !writing_.empty();
      ASSERT_TRUE(has_started || is_busy) << "nothing moves at tick " << executor_.tick();
      if (is_busy) finish_one();
      take_drops();
      ASSERT_LE(device_bytes_, capacity_bytes_);
      ASSERT_EQ(device_bytes_, executor_.used_bytes());
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  std::uint64_t fetched_bytes() const { return fetched_bytes_; }
  std::uint64_t left_bytes() const { return left_bytes_; }
  std::uint64_t emergencies() const { return executor_.emergencies(); }

 private:
  struct Version {
    std::uint64_t current;
    std::uint64_t on_host;
  };

  std::uint64_t bytes(PieceIndex piece) const { return map_.pieces()[piece].bytes; }
  void put(PieceIndex piece) {
    ASSERT_TRUE(device_.insert(piece).second);
    device_bytes_ += bytes(piece);
  }
  void remove(PieceIndex piece) {
    ASSERT_EQ(device_.erase(piece), 1U);
    device_bytes_ -= bytes(piece);
    ASSERT_EQ(versions_[piece].on_host, versions_[piece].current) << "contents of piece " << piece << " are lost";
  }

  bool offer_starts() {
    bool has_started = false;
    if (!fetching_) {
      if (const auto piece = executor_.start_fetch()) {
        fetching_ = piece;
        has_started = true;
        put(*piece);  // its memory is taken from the start
      }
    }
    if (writing_.size() < 2) {
      if (const auto piece = executor_.start_writeback()) {
        EXPECT_TRUE(device_.contains(*piece));
        EXPECT_NE(fetching_, piece);
        writing_.push_back({*piece, versions_[*piece].current});
        has_started = true;
      }
    }
    take_drops();
    if (!is_running_ && executor_.can_launch()) {
      has_started = true;
      start_launch();
    }
    return has_started;
  }

  void start_launch() {
    const auto k = static_cast<LaunchIndex>(executor_.tick() % map_.launches());
    executor_.launch_started();
    is_running_ = true;
    for (TouchIndex t = map_.touch_begin(k); t < map_.touch_end(k); ++t) {
      const PieceTouch& touch = map_.touches()[t];
      if (touch.is_birth) {
        put(touch.piece);
        versions_[touch.piece] = {++last_version_, touch.is_written ? 0 : last_version_};
      }
      ASSERT_TRUE(device_.contains(touch.piece)) << "launch " << k << " touches an absent piece";
      ASSERT_NE(fetching_, touch.piece) << "launch " << k << " touches an arriving piece";
      if (touch.is_written) versions_[touch.piece].current = ++last_version_;
    }
  }

  void finish_one() {
    std::vector<int> under_way;
    if (is_running_) under_way.push_back(0);
    if (fetching_) under_way.push_back(1);
    for (std::size_t i = 0; i < writing_.size(); ++i) under_way.push_back(2 + static_cast<int>(i));
    const int which = under_way[sequence_.below(under_way.size())];
    switch (which) {
      case 0: {
        const auto k = static_cast<LaunchIndex>(executor_.tick() % map_.launches());
        executor_.launch_finished();
        is_running_ = false;
        for (TouchIndex t = map_.touch_begin(k); t < map_.touch_end(k); ++t) {
          const PieceTouch& touch = map_.touches()[t];
          if (touch.gap_ticks != 0) continue;
          versions_[touch.piece] = {0, 0};  // nobody wants them any more
          remove(touch.piece);
        }
        break;
      }
      case 1:
        executor_.fetch_finished();
        fetched_bytes_ += bytes(*fetching_);
        if (!cost_.clean_copies) versions_[*fetching_].on_host = 0;
        fetching_.reset();
        break;
      default: {
        const auto [piece, copied_version] = writing_[static_cast<std::size_t>(which - 2)];
        writing_.erase(writing_.begin() + which - 2);
        const bool has_left = executor_.writeback_finished(piece);
        if (cost_.clean_copies || has_left) versions_[piece].on_host = copied_version;
        if (has_left) {
          left_bytes_ += bytes(piece);
          remove(piece);
        }
      }
    }
  }

  void take_drops() {
    for (const PieceIndex piece : executor_.take_drops()) {
      EXPECT_TRUE(cost_.clean_copies);
      left_bytes_ += bytes(piece);
      remove(piece);
    }
  }

  const PieceMap& map_;
  const CostModel& cost_;
  std::uint64_t capacity_bytes_;
  ScheduleExecutor executor_;
  Sequence sequence_;
  std::vector<Version> versions_;
  std::set<PieceIndex> device_;
  std::uint64_t device_bytes_ = 0, fetched_bytes_ = 0, left_bytes_ = 0;
  std::uint64_t last_version_ = 0;
  std::optional<PieceIndex> fetching_;
  std::vector<std::pair<PieceIndex, std::uint64_t>> writing_;  // with the version that is being copied
  bool is_running_ = false;
};

std::uint64_t between(const PieceMap& map, std::uint64_t percent) {
  const std::uint64_t least = map.touched_bytes(map.largest_launch());
  return least + (map.peak_live_bytes() - least) * percent / 100;
}

TEST(ScheduleExecutor, keeps_memory_and_contents_under_good_schedules_at_random_timing) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const AccessPattern pattern = random_pattern(seed, 24, 40);
    CostModel cost = CostModel::ideal(20e9);
    cost.clean_copies = seed % 3 != 0;
    const PieceMap probe(pattern, pattern.extents() * 4 * kBlockBytes);
    const std::uint64_t capacity_bytes = between(probe, seed % 7 * 15);
    const PieceMap map(pattern, capacity_bytes);
    const Schedule schedule = select_gaps(map, cost, capacity_bytes, {0.01 * static_cast<double>(seed % 4), 0.2});
    Referee referee(map, schedule, cost, capacity_bytes, seed);
    referee.run(6 * map.launches());
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
  }
}

TEST(ScheduleExecutor, keeps_memory_and_contents_under_senseless_schedules) {
  std::uint64_t emergencies = 0;
  for (std::uint64_t seed = 100; seed < 160; ++seed) {
    const AccessPattern pattern = random_pattern(seed, 20, 30);
    CostModel cost = CostModel::ideal(20e9);
    cost.clean_copies = seed % 2 == 0;
    const PieceMap probe(pattern, pattern.extents() * 4 * kBlockBytes);
    const std::uint64_t capacity_bytes = between(probe, seed % 3 * 30);
    const PieceMap map(pattern, capacity_bytes);
    Sequence sequence(seed);
    Schedule schedule;
    for (const PieceTouch& touch : map.touches()) {
      schedule.is_away.push_back(touch.gap_ticks > 1 && sequence.below(3) == 0 ? 1 : 0);
    }
    derive_schedule(map, cost, schedule);
    // What crosses the iteration's start must fit there; the executor takes it as given.
    if (schedule.base_bytes[0] - map.birth_bytes(0) > capacity_bytes) continue;
    Referee referee(map, schedule, cost, capacity_bytes, seed);
    referee.run(6 * map.launches());
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    emergencies += referee.emergencies();
  }
  EXPECT_GT(emergencies, 100U);  // the schedules were senseless
}

TEST(ScheduleExecutor, brings_back_as_much_as_has_left) {
  const AccessPattern pattern = layer_stack(12, 4, 300'000);
  const CostModel cost = CostModel::ideal(10e9);
  const PieceMap probe(pattern, std::uint64_t{1} << 40);
  const std::uint64_t capacity_bytes = probe.peak_live_bytes() / 2;
  const PieceMap map(pattern, capacity_bytes);
  const Schedule schedule = select_gaps(map, cost, capacity_bytes, {0, 0.1});
  Referee referee(map, schedule, cost, capacity_bytes, 1);
  referee.run(20 * map.launches());
  EXPECT_GT(referee.left_bytes(), 0U);
  const auto difference = static_cast<double>(referee.fetched_bytes()) - static_cast<double>(referee.left_bytes());
  EXPECT_LE(std::abs(difference), static_cast<double>(capacity_bytes));  // what happens to be away at the two ends
}

TEST(ScheduleExecutor, refuses_a_launch_larger_than_the_device) {
  const AccessPattern pattern = layer_stack(4, 4, 1000);
  const PieceMap map(pattern, std::uint64_t{1} << 40);
  const CostModel cost = CostModel::ideal(1e9);
  const Schedule schedule = select_gaps(map, cost, std::uint64_t{1} << 40, {0, 1});
  const std::uint64_t needed_bytes = map.touched_bytes(map.largest_launch());
  EXPECT_NO_THROW(ScheduleExecutor(map, schedule, cost, needed_bytes));
  EXPECT_THROW(ScheduleExecutor(map, schedule, cost, needed_bytes - 1), std::invalid_argument);
}

TEST(ScheduleExecutor, precleans_so_that_leaving_moves_nothing) {
  // Written, then read long before its gap: the copy is made in between and the drop is free.
  AccessPattern pattern;
  const auto weight = pattern.add_extent(kBlockBytes, kPersistent);
  pattern.add_launch(1'000'000, std::vector<ExtentTouch>{{weight, true}});
  pattern.add_launch(1'000'000, std::vector<ExtentTouch>{{weight, false}});
  for (int i = 0; i < 4; ++i) pattern.add_launch(1'000'000, {});
  const CostModel cost = CostModel::ideal(10e9);
  const PieceMap map(pattern, 8 * kBlockBytes);
  Schedule schedule;
  schedule.is_away = {0, 1};
  derive_schedule(map, cost, schedule);
  EXPECT_EQ(schedule.preclean_ticks, (std::vector<std::uint32_t>{1, 0}));
  EXPECT_EQ(schedule.base_bytes, (std::vector<std::uint64_t>{kBlockBytes, kBlockBytes, 0, 0, 0, 0}));

  ScheduleExecutor executor(map, schedule, cost, 8 * kBlockBytes);
  ASSERT_EQ(executor.start_fetch(), PieceIndex{0});
  executor.fetch_finished();
  executor.launch_started();
  executor.launch_finished();
  ASSERT_EQ(executor.start_writeback(), PieceIndex{0});
  EXPECT_FALSE(executor.writeback_finished(0));
  executor.launch_started();
  executor.launch_finished();
  EXPECT_EQ(executor.take_drops(), std::vector<PieceIndex>{0});
  EXPECT_EQ(executor.used_bytes(), 0U);
}

TEST(ScheduleExecutor, a_write_during_the_copy_makes_it_worthless) {
  AccessPattern pattern;
  const auto weight = pattern.add_extent(kBlockBytes, kPersistent);
  pattern.add_launch(1'000'000, std::vector<ExtentTouch>{{weight, true}});
  pattern.add_launch(1'000'000, std::vector<ExtentTouch>{{weight, true}});
  for (int i = 0; i < 4; ++i) pattern.add_launch(1'000'000, {});
  const CostModel cost = CostModel::ideal(10e9);
  const PieceMap map(pattern, 8 * kBlockBytes);
  Schedule schedule;
  schedule.is_away = {0, 1};
  schedule.preclean_ticks = {1, 0};  // wrong on purpose: the second launch writes again
  schedule.base_bytes = {kBlockBytes, kBlockBytes, 0, 0, 0, 0};

  ScheduleExecutor executor(map, schedule, cost, 8 * kBlockBytes);
  ASSERT_TRUE(executor.start_fetch().has_value());
  executor.fetch_finished();
  executor.launch_started();
  executor.launch_finished();
  ASSERT_TRUE(executor.start_writeback().has_value());
  executor.launch_started();
  EXPECT_FALSE(executor.writeback_finished(0));
  executor.launch_finished();
  EXPECT_TRUE(executor.take_drops().empty());
  ASSERT_EQ(executor.start_writeback(), PieceIndex{0});
  EXPECT_TRUE(executor.writeback_finished(0));
}

}  // namespace
}  // namespace hmshim::policy
