#include "policy/pattern_recorder.hpp"

#include <gtest/gtest.h>

#include "tests/unit/policy/learned_program.hpp"

namespace hmshim::policy {
namespace {

constexpr auto kNothing = [](const Launch&) {};

class Calls {
 public:
  void allocate(ExtentId id, std::uint64_t blocks = 1) { recorder.allocated(id, blocks * kBlockBytes); }
  void free(ExtentId id) { recorder.freed(id); }
  void launch(std::uint64_t signature, std::vector<ExtentId> touched, std::uint8_t stream = 0) {
    recorder.launch({.tick = 0, .signature = signature, .time_ns = 0, .touched = touched, .stream = stream});
  }
  PatternRecorder recorder;
};

TEST(PatternRecorder, knows_weights_by_id_and_activations_by_place) {
  PatternRecorder recorder;
  LayerProgram program(recorder, 3, 2);
  program.iterate(kNothing);
  EXPECT_FALSE(last_iteration(recorder, program.launches())) << "once is no repetition";
  program.iterate(kNothing);

  const auto iteration = last_iteration(recorder, program.launches());
  ASSERT_TRUE(iteration);
  ASSERT_EQ(iteration->launches.size(), 9U);
  ASSERT_EQ(iteration->extents.size(), 6U);
  int persistent = 0;
  for (const Iteration::Extent& extent : iteration->extents) {
    EXPECT_EQ(extent.bytes, 2 * kBlockBytes);
    if (extent.born == kPersistent) {
      EXPECT_EQ(extent.id, persistent++);
    } else {
      EXPECT_LT(extent.born, 3U);
      EXPECT_EQ(extent.id, kNoExtent);
    }
  }
  EXPECT_EQ(persistent, 3);
  // The first backward launch names the last layer's weight and activation.
  const auto backward = iteration->operands_of(3);
  const auto forward = iteration->operands_of(2);
  ASSERT_EQ(backward.size(), 2U);
  EXPECT_EQ(backward[0], forward[0]);
  EXPECT_EQ(backward[1], forward[1]);
}

TEST(PatternRecorder, an_allocation_that_outlives_its_round_is_born_again_in_the_same_place) {
  Calls calls;
  // A batch is prepared at the end of a round and used up at the start of the next.
  ExtentId batch = 0, next = 1;
  calls.allocate(batch);
  calls.launch(9, {batch});
  for (int round = 0; round < 3; ++round) {
    calls.launch(1, {batch});
    calls.launch(2, {});
    calls.free(batch);
    calls.allocate(next);
    calls.launch(9, {next});
    std::swap(batch, next);
  }
  const auto iteration = last_iteration(calls.recorder, 3);
  ASSERT_TRUE(iteration);
  ASSERT_EQ(iteration->extents.size(), 1U);
  EXPECT_EQ(iteration->extents[0].born, 2U);
  EXPECT_EQ(iteration->operands_of(0)[0], 0U);
  EXPECT_EQ(iteration->operands_of(2)[0], 0U);
}

TEST(PatternRecorder, a_launch_that_turns_last_rounds_data_into_this_rounds_names_one_extent) {
  Calls calls;
  ExtentId state = 0, next = 1;
  calls.allocate(state);
  for (int round = 0; round < 4; ++round) {
    calls.launch(1, {});
    calls.allocate(next);
    calls.launch(2, {state, next});
    calls.free(state);
    std::swap(state, next);
  }
  const auto iteration = last_iteration(calls.recorder, 2);
  ASSERT_TRUE(iteration);
  ASSERT_EQ(iteration->extents.size(), 1U);
  EXPECT_EQ(iteration->operands_of(1)[0], kUnplanned);
  EXPECT_EQ(iteration->operands_of(1)[1], 0U);
}

TEST(PatternRecorder, buffers_that_take_turns_are_no_iteration_of_one_round) {
  Calls calls;
  calls.allocate(0);
  calls.allocate(1);
  for (int round = 0; round < 4; ++round) {
    calls.launch(1, {static_cast<ExtentId>(round % 2)});
    calls.launch(2, {static_cast<ExtentId>(1 - round % 2)});
  }
  EXPECT_FALSE(last_iteration(calls.recorder, 2));
  const auto two_rounds = last_iteration(calls.recorder, 4);
  ASSERT_TRUE(two_rounds);
  EXPECT_EQ(two_rounds->extents.size(), 2U);
}

TEST(PatternRecorder, rounds_that_differ_in_a_size_a_stream_or_a_kernel_are_not_alike) {
  for (int difference = 0; difference < 4; ++difference) {
    Calls calls;
    calls.allocate(0);
    for (int round = 0; round < 2; ++round) {
      const bool differs = round == 1;
      calls.allocate(1, differs && difference == 1 ? 2 : 1);
      calls.launch(1, {0});
      calls.launch(differs && difference == 2 ? 3 : 2, {1}, differs && difference == 3 ? 1 : 0);
      calls.free(1);
    }
    EXPECT_EQ(last_iteration(calls.recorder, 2).has_value(), difference == 0) << difference;
  }
}

TEST(PatternRecorder, what_only_one_round_has_is_left_out) {
  for (int longer = 0; longer < 2; ++longer) {
    Calls calls;
    calls.allocate(0);
    calls.allocate(1);
    calls.launch(9, {});
    calls.recorder.end_iteration(1);
    for (int round = 0; round < 2; ++round) {
      calls.launch(1, {0});
      if (round == longer) {
        calls.launch(7, {0});
        calls.launch(8, {1});
      }
      calls.launch(2, {0, 1});
      calls.recorder.end_iteration(2);
    }
    const auto iteration = calls.recorder.last_iteration();
    ASSERT_TRUE(iteration);
    ASSERT_EQ(iteration->launches.size(), 2U);
    EXPECT_EQ(iteration->launches[1].signature, 2U);
    EXPECT_EQ(iteration->extents.size(), 2U);
  }
}

TEST(PatternRecorder, a_hundred_thousand_launches_take_less_than_20_mb) {
  Calls calls;
  for (ExtentId id = 0; id < 5; ++id) calls.allocate(id);
  for (int launch = 0; launch < 600'000; ++launch)
    calls.launch(static_cast<std::uint64_t>(launch % 100'000), {0, 1, 2, 3});
  EXPECT_LT(calls.recorder.memory_bytes(), 20'000'000U);
  const auto iteration = last_iteration(calls.recorder, 100'000);
  ASSERT_TRUE(iteration);
  EXPECT_EQ(iteration->operands.size(), 400'000U);
}

}  // namespace
}  // namespace hmshim::policy
