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
  for (ExtentId id = 0; id < kExtents; ++id) engine.allocated({id, kBlockBytes});
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

TEST(Baselines, g10_without_foreknowledge_does_what_belady_does) {
  const Round belady = sweep("belady", 8);
  const Round g10 = sweep("g10", 8);
  EXPECT_EQ(g10.prefetched_blocks, belady.prefetched_blocks);
  EXPECT_EQ(g10.demoted_blocks, belady.demoted_blocks);
}

// Twelve launches of 1 ms; the link moves 4 blocks in that time. `early` and `often` have 10 blocks each: `early` is
// used by launches 0 and 11, `often` by 0, 2 and 9. `always` is used by all. In launches 5 and 6 `peak` lives, 10
// blocks.
class G10Program {
 public:
  static constexpr ExtentId kAlways = 0, kEarly = 1, kOften = 2, kPeak = 3;

  explicit G10Program(std::uint64_t budget_blocks)
      : engine_({.policy = "g10", .budget_bytes = budget_blocks * kBlockBytes}) {
    engine_.allocated({kAlways, kBlockBytes});
    engine_.allocated({kEarly, 10 * kBlockBytes});
    engine_.allocated({kOften, 10 * kBlockBytes});
  }

  struct Move {
    int launch;
    ActionKind kind;
    ExtentId extent;
    bool operator==(const Move&) const = default;
  };
  // What one round asks for.
  std::vector<Move> round() {
    std::vector<Move> moves;
    for (int launch = 0; launch < 12; ++launch) {
      if (launch == 5) engine_.allocated({kPeak, 10 * kBlockBytes});
      std::vector<ExtentId> touched{kAlways};
      if (launch == 0 || launch == 11) touched.push_back(kEarly);
      if (launch == 0 || launch == 2 || launch == 9) touched.push_back(kOften);
      if (launch == 5 || launch == 6) touched.push_back(kPeak);
      constexpr double kRate = 4e3 * kBlockBytes;
      const Foreknowledge known{.last_launch_ns = 1'000'000, .h2d_bytes_per_s = kRate, .d2h_bytes_per_s = kRate};
      Actions actions;
      engine_.launch({.tick = ++tick_,
                      .signature = 100U + static_cast<std::uint64_t>(launch),
                      .time_ns = 0,
                      .touched = touched,
                      .foreknowledge = &known},
                     actions);
      for (const Action& action : actions) moves.push_back({launch, action.kind, action.extent});
      if (launch == 6) engine_.freed({kPeak});
    }
    return moves;
  }

 private:
  Engine engine_;
  Tick tick_ = 0;
};

TEST(G10, sends_away_what_relieves_the_peak_and_can_be_back_in_time) {
  G10Program program(25);
  std::vector<G10Program::Move> moves;
  for (int round = 0; round < 8; ++round) moves = program.round();
  // `often` would relieve as much, but its gap of 6 launches is too short for 3 out and 3 in. `early` leaves as soon as
  // it is idle and comes back as soon as the peak is over.
  const std::vector<G10Program::Move> expected = {{1, ActionKind::Demote, G10Program::kEarly},
                                                  {5, ActionKind::Prefetch, G10Program::kPeak},
                                                  {7, ActionKind::Prefetch, G10Program::kEarly}};
  EXPECT_EQ(moves, expected);
}

TEST(G10, moves_nothing_where_all_fits) {
  G10Program program(31);
  std::vector<G10Program::Move> moves;
  for (int round = 0; round < 8; ++round) moves = program.round();
  EXPECT_EQ(moves, (std::vector<G10Program::Move>{{5, ActionKind::Prefetch, G10Program::kPeak}}));
}

TEST(Baselines, driver_asks_for_nothing) {
  const Round round = sweep("driver", 3);
  EXPECT_EQ(round.prefetched_blocks + round.demoted_blocks, 0U);
}

TEST(Baselines, prefetch_at_alloc_prefetches_what_was_never_touched_and_faults_what_comes_back) {
  Engine engine({.policy = "prefetch_at_alloc", .budget_bytes = kBlockBytes});
  const std::vector<ExtentId> ids{0, 1};
  for (const ExtentId id : ids) engine.allocated({id, kBlockBytes});
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
