#include "policy/iteration_detector.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace hmshim::policy {
namespace {

struct Step {
  std::uint64_t signature;
  std::uint64_t weight = 100;
};
using Program = std::vector<Step>;

Program& operator+=(Program& program, const Program& more) {
  program.insert(program.end(), more.begin(), more.end());
  return program;
}
Program operator*(const Program& part, int times) {
  Program result;
  for (int i = 0; i < times; ++i) result += part;
  return result;
}
Program operator+(Program a, const Program& b) { return a += b; }

// `launches` different kernels, numbered from `first`.
Program kernels(std::uint64_t first, std::uint64_t launches, std::uint64_t weight = 100) {
  Program result;
  for (std::uint64_t i = 0; i < launches; ++i) result.push_back({first + i, weight});
  return result;
}

const Program kWarmUp = kernels(9000, 150) + kernels(9000, 20) + kernels(9500, 77);

// Layers that cannot be told apart, forward and backward, between an embedding and a head; Adam runs per parameter.
Program transformer_step(int layers) {
  return kernels(100, 3) + kernels(200, 12) * layers + kernels(300, 5) + kernels(400, 25) * layers + kernels(500, 2) +
         kernels(600, 4) * (4 * layers);
}

// The detector and what a reader of it saw.
struct Watch {
  IterationDetector detector;
  std::uint64_t launches = 0;
  std::vector<std::uint64_t> boundaries;  // launches so far at each
  double highest_confidence = 0;

  void play(const Program& program) {
    for (const Step& step : program) {
      detector.observe(step.signature, step.weight);
      ++launches;
      if (detector.iteration_completed()) boundaries.push_back(launches);
      highest_confidence = std::max(highest_confidence, detector.confidence());
    }
  }
  // Plays until the period is `period`, at most `limit` launches of the repeated program; how many it took.
  std::uint64_t play_until_period(const Program& body, std::uint64_t period, std::uint64_t limit) {
    for (std::uint64_t i = 0; i < limit; ++i) {
      play({body[i % body.size()]});
      if (detector.period_launches() == period) return i + 1;
    }
    return ~std::uint64_t{0};
  }
  // Distances between boundaries after `from` launches.
  [[nodiscard]] std::vector<std::uint64_t> intervals(std::uint64_t from) const {
    std::vector<std::uint64_t> result;
    for (std::size_t i = 1; i < boundaries.size(); ++i) {
      if (boundaries[i - 1] >= from) result.push_back(boundaries[i] - boundaries[i - 1]);
    }
    return result;
  }
};

// A period shows when four launches in a row, unique in it, come for the third time and an inner loop, had one been
// found, is overdue.
constexpr std::uint64_t kSlack = 8;

void expect_found_within_two_iterations(const Program& body) {
  Watch run;
  run.play(kWarmUp);
  const std::uint64_t needed = run.play_until_period(body, body.size(), 3 * body.size());
  ASSERT_LE(needed, 2 * body.size() + kSlack);
  EXPECT_GE(run.detector.confidence(), 0.75);
  const std::uint64_t found_at = run.launches;
  const std::size_t phase = needed % body.size();
  const Program rest(body.begin() + static_cast<std::ptrdiff_t>(phase), body.end());
  const Program head(body.begin(), body.begin() + static_cast<std::ptrdiff_t>(phase));
  run.play((rest + head) * 6);
  EXPECT_EQ(run.intervals(found_at), std::vector<std::uint64_t>(6, body.size()));
  EXPECT_GE(run.detector.confidence(), 0.98);
}

TEST(IterationDetector, knows_no_period_before_anything_repeats) {
  Watch run;
  run.play(kernels(0, 5000));
  EXPECT_FALSE(run.detector.has_period());
  EXPECT_EQ(run.detector.confidence(), 0);
  EXPECT_EQ(run.detector.position(), 5000U);
  EXPECT_TRUE(run.boundaries.empty());
}

TEST(IterationDetector, finds_a_network_of_different_layers_within_two_iterations) {
  expect_found_within_two_iterations(kernels(0, 1299));
}

TEST(IterationDetector, finds_the_iteration_around_identical_layers) {
  for (const int layers : {2, 12, 48}) expect_found_within_two_iterations(transformer_step(layers));
}

TEST(IterationDetector, finds_an_iteration_made_of_nothing_but_repeated_layers) {
  expect_found_within_two_iterations(kernels(0, 9) * 24 + kernels(50, 14) * 24);
}

TEST(IterationDetector, finds_a_loop_of_a_few_launches) { expect_found_within_two_iterations(kernels(0, 12)); }

TEST(IterationDetector, finds_a_loop_of_one_launch) {
  Watch run;
  run.play(kernels(7, 1) * 100);
  EXPECT_EQ(run.detector.period_launches(), 1U);
  EXPECT_GE(run.detector.confidence(), 0.98);
}

TEST(IterationDetector, does_not_take_layers_on_fresh_weights_for_iterations) {
  const Program layers = kernels(0, 12) * 24;
  IterationDetector detector;
  std::uint64_t launches = 0;
  for (int iteration = 0; iteration < 3; ++iteration) {
    for (const Step& step : layers + kernels(100, 6)) {
      // Every fourth launch reads a weight of its layer, last read in the iteration before.
      const std::uint64_t staleness = step.signature % 4 == 0 ? std::min<std::uint64_t>(launches + 1, 294) : 1;
      detector.observe(step.signature, step.weight, staleness);
      ++launches;
      if (launches < 2 * 294) {
        ASSERT_FALSE(detector.has_period()) << "at launch " << launches;
      }
    }
  }
  EXPECT_EQ(detector.period_launches(), 294U);
}

TEST(IterationDetector, takes_micro_steps_and_their_optimizer_step_as_one_iteration) {
  const Program optimizer = kernels(700, 8, 400);
  for (const int micro_steps : {2, 3, 4, 16}) {
    const Program body = kernels(0, 10) + kernels(20, 120) + kernels(20, 60);
    expect_found_within_two_iterations(body * micro_steps + optimizer);
  }
}

TEST(IterationDetector, keeps_its_phase_through_an_evaluation_every_ten_steps) {
  const Program forward = kernels(0, 90);
  const Program step = forward + kernels(200, 160) + kernels(600, 40);
  const Program epoch = step * 10 + (forward + kernels(800, 1, 1)) * 3;
  Watch run;
  run.play(kWarmUp + epoch * 8);
  const std::vector<std::uint64_t> intervals = run.intervals(kWarmUp.size());
  EXPECT_EQ(run.detector.period_launches(), step.size());
  // All boundaries stand at the end of a step: what lies between two of them is a step, or a step and an evaluation.
  for (const std::uint64_t interval : intervals) {
    EXPECT_TRUE(interval == step.size() || interval == step.size() + 3 * (forward.size() + 1)) << interval;
  }
  EXPECT_EQ(intervals.size(), 80U - 2);
  run.play(step * 5);
  EXPECT_GE(run.detector.confidence(), 0.95);
}

TEST(IterationDetector, an_interruption_lowers_the_confidence_and_steady_iterations_restore_it) {
  const Program step = kernels(0, 300);
  Watch run;
  run.play(step * 8);
  const double steady = run.detector.confidence();
  run.play(kernels(900, 250) + step);
  EXPECT_LT(run.detector.confidence(), steady - 0.15);
  run.play(step * 6);
  EXPECT_GE(run.detector.confidence(), 0.98);
}

TEST(IterationDetector, keeps_its_period_through_values_logged_every_seven_steps) {
  const Program step = kernels(0, 200);
  Watch run;
  run.play(kWarmUp + step * 2);
  for (int i = 0; i < 20; ++i) {
    run.play(step * 6);
    ASSERT_EQ(run.detector.period_launches(), step.size());
    run.play(kernels(900, 3, 1) + step);
    ASSERT_EQ(run.detector.period_launches(), step.size());
  }
  const auto intervals = run.intervals(0);
  EXPECT_EQ(std::count(intervals.begin(), intervals.end(), 200U), 120);
  EXPECT_EQ(std::count(intervals.begin(), intervals.end(), 203U), 20);
}

TEST(IterationDetector, follows_sequences_of_varying_length_with_low_confidence) {
  std::mt19937_64 random(5);
  const Program prefix = kernels(0, 60);
  const Program suffix = kernels(300, 90);
  Watch run;
  run.play(kWarmUp);
  std::vector<std::uint64_t> ends;
  for (int i = 0; i < 60; ++i) {
    // Every length has grids, hence signatures, of its own.
    const std::uint64_t length = 40 + random() % 200;
    run.play(prefix + kernels(10000 + 1000 * length, length) + suffix);
    ends.push_back(run.launches);
  }
  ASSERT_TRUE(run.detector.has_period());
  EXPECT_GT(run.detector.confidence(), 0.1);
  EXPECT_LT(run.highest_confidence, 0.85);
  // From the twentieth iteration on: one boundary per iteration, at the same place.
  const std::size_t last_twenty = run.boundaries.size() - 40;
  const std::uint64_t phase = ends.back() - run.boundaries.back();
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(ends[20 + i] - run.boundaries[last_twenty + i], phase);
}

TEST(IterationDetector, finds_the_new_period_after_a_change_of_phase) {
  const Program first = kernels(0, 400);
  const Program second = kernels(1000, 250) + kernels(1000, 40);
  Watch run;
  run.play(first * 10);
  const std::uint64_t needed = run.play_until_period(second, second.size(), 10 * second.size());
  // The old iteration is overdue after twice its length, the new one known after two.
  EXPECT_LE(needed, 2 * first.size() + second.size());
  run.play(second * 6);
  EXPECT_GE(run.detector.confidence(), 0.95);
}

TEST(IterationDetector, comes_back_to_training_after_a_long_validation_within_two_steps) {
  const Program step = kernels(0, 100) + kernels(200, 200);
  const Program validation = kernels(5000, 100) * 30;
  Watch run;
  run.play(step * 20 + validation);
  EXPECT_EQ(run.detector.period_launches(), 100U);
  run.play(step * 2);
  EXPECT_EQ(run.detector.period_launches(), step.size());
  EXPECT_GE(run.detector.confidence(), 0.95);
}

TEST(IterationDetector, loses_confidence_when_an_iteration_is_overdue) {
  Watch run;
  run.play(kernels(0, 100) * 10);
  run.play(kernels(1000, 1000));
  EXPECT_LT(run.detector.confidence(), 0.15);
}

TEST(IterationDetector, has_low_confidence_in_random_launches) {
  for (const std::uint64_t alphabet : {3, 10, 100, 5000}) {
    std::mt19937_64 random(alphabet);
    Watch run;
    double sum = 0;
    constexpr int kLaunches = 50000;
    for (int i = 0; i < kLaunches; ++i) {
      run.play({{random() % alphabet}});
      sum += run.detector.confidence();
    }
    EXPECT_LT(sum / kLaunches, 0.05) << alphabet << " kernels";
  }
}

TEST(IterationDetector, has_low_confidence_in_blocks_in_random_order) {
  std::mt19937_64 random(1);
  Watch run;
  double sum = 0;
  constexpr int kBlocks = 2000;
  for (int i = 0; i < kBlocks; ++i) {
    run.play(kernels(1000 * (random() % 20), 50));
    sum += run.detector.confidence();
  }
  EXPECT_LT(sum / kBlocks, 0.3);
  // It changes its mind, if it does, at the scale of blocks, not of launches.
  EXPECT_LT(run.boundaries.size(), static_cast<std::size_t>(kBlocks));
}

TEST(IterationDetector, finds_any_random_loop_after_any_random_prefix) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const std::uint64_t alphabet = 20 + random() % 500;
    const auto draw = [&](std::uint64_t launches, std::uint64_t offset) {
      Program result;
      for (std::uint64_t i = 0; i < launches; ++i) result.push_back({offset + random() % alphabet, 1 + random() % 100});
      return result;
    };
    const Program body = draw(20 + random() % 1500, 0);
    Watch run;
    run.play(draw(random() % 2000, random() % 2 == 0 ? 0 : 100000));
    const std::uint64_t needed = run.play_until_period(body, body.size(), 4 * body.size());
    ASSERT_LE(needed, 2 * body.size() + kSlack) << "seed " << seed;
    const std::uint64_t found_at = run.launches;
    run.play(Program(body.begin() + static_cast<std::ptrdiff_t>(needed % body.size()), body.end()) + body * 4);
    for (const std::uint64_t interval : run.intervals(found_at)) ASSERT_EQ(interval, body.size()) << "seed " << seed;
  }
}

TEST(IterationDetector, finds_an_iteration_of_a_hundred_thousand_launches) {
  const Program body = kernels(0, 100'000);
  Watch run;
  run.play(body * 2);
  EXPECT_EQ(run.detector.period_launches(), body.size());
  run.play(body * 3);
  EXPECT_EQ(run.detector.completed_iterations(), 3U);
  EXPECT_GE(run.detector.confidence(), 0.95);
}

TEST(IterationDetector, gives_up_on_iterations_longer_than_its_history) {
  Watch run;
  run.play(kernels(0, IterationDetector::kMaxPeriodLaunches + 1) * 3);
  EXPECT_FALSE(run.detector.has_period());
}

TEST(IterationDetector, counts_positions_and_iterations_from_boundaries) {
  const Program body = kernels(0, 50);
  Watch run;
  run.play(body * 2);
  EXPECT_TRUE(run.detector.iteration_completed());
  EXPECT_EQ(run.detector.position(), 0U);
  EXPECT_EQ(run.detector.completed_iterations(), 0U);
  run.play(kernels(0, 20));
  EXPECT_FALSE(run.detector.iteration_completed());
  EXPECT_EQ(run.detector.position(), 20U);
  run.play(kernels(20, 30));
  EXPECT_TRUE(run.detector.iteration_completed());
  EXPECT_EQ(run.detector.completed_iterations(), 1U);
}

}  // namespace
}  // namespace hmshim::policy
