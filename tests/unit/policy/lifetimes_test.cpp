#include "policy/lifetimes.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace hmshim::policy {
namespace {

constexpr std::uint64_t kLayers = 12;
constexpr std::uint64_t kPeriod = 4 * kLayers;
constexpr ExtentId kWeight = 0, kState = 100, kActivation = 200, kGradient = 300, kScratch = 400;

// Forward and backward of each layer, one launch of scratch memory after each forward, and the optimizer.
LifetimeTallies train(std::uint64_t iterations) {
  Lifetimes lifetimes;
  std::uint64_t launch = 0;
  const auto run = [&](std::vector<ExtentId> touched) { lifetimes.launched(touched, ++launch, kPeriod); };
  for (ExtentId layer = 0; layer < kLayers; ++layer) {
    lifetimes.began(kWeight + layer, 10, launch);
    lifetimes.began(kState + layer, 20, launch);
  }
  for (std::uint64_t iteration = 0; iteration < iterations; ++iteration) {
    for (ExtentId layer = 0; layer < kLayers; ++layer) {
      lifetimes.began(kActivation + layer, 30, launch);
      run({kWeight + layer, kActivation + layer});
      lifetimes.began(kScratch, 7, launch);
      run({kScratch, kActivation + layer});
      lifetimes.ended(kScratch, launch, kPeriod);
    }
    for (ExtentId layer = kLayers; layer-- > 0;) {
      lifetimes.began(kGradient + layer, 40, launch);
      run({kWeight + layer, kActivation + layer, kGradient + layer});
      lifetimes.ended(kActivation + layer, launch, kPeriod);
    }
    for (ExtentId layer = 0; layer < kLayers; ++layer) run({kWeight + layer, kState + layer, kGradient + layer});
    lifetimes.migrated(kState, 5);
    for (ExtentId layer = 0; layer < kLayers; ++layer) lifetimes.ended(kGradient + layer, launch, kPeriod);
  }
  return lifetimes.tallies(launch, kPeriod);
}

const LifetimeTally& of(const LifetimeTallies& tallies, LifetimeClass lifetime) {
  return tallies[static_cast<std::size_t>(lifetime)];
}

TEST(Lifetimes, of_a_training_program_tell_its_data_apart) {
  constexpr std::uint64_t kIterations = 20;
  const LifetimeTallies tallies = train(kIterations);
  EXPECT_EQ(of(tallies, LifetimeClass::Weights).extents, kLayers);
  EXPECT_EQ(of(tallies, LifetimeClass::Weights).bytes, kLayers * 10);
  EXPECT_EQ(of(tallies, LifetimeClass::OptimizerState).extents, kLayers);
  EXPECT_EQ(of(tallies, LifetimeClass::OptimizerState).migrated_bytes, 5 * kIterations);
  // Near the turn of the iteration the activations of two layers wait as little as scratch memory, and near its end the
  // gradients of four.
  EXPECT_EQ(of(tallies, LifetimeClass::Workspace).extents, (kLayers + 2 + 4) * kIterations);
  // Before two iterations have passed no state is known, and gradients look like activations.
  const std::uint64_t gradients = of(tallies, LifetimeClass::Gradients).extents;
  EXPECT_GE(gradients, (kLayers - 4) * (kIterations - 3));
  EXPECT_EQ(gradients + of(tallies, LifetimeClass::Activations).extents, (kLayers - 4 + kLayers - 2) * kIterations);
}

TEST(Lifetimes, count_each_byte_once) {
  std::uint64_t bytes = 0;
  for (const LifetimeTally& tally : train(7)) bytes += tally.bytes;
  EXPECT_EQ(bytes, kLayers * (10 + 20) + 7 * kLayers * (30 + 40 + 7));
}

TEST(Lifetimes, without_a_known_period_nothing_is_long_lived) {
  Lifetimes lifetimes;
  lifetimes.began(0, 1, 0);
  for (std::uint64_t launch = 1; launch < 1000; ++launch) lifetimes.launched(std::vector<ExtentId>{0}, launch, 0);
  EXPECT_EQ(of(lifetimes.tallies(1000, 0), LifetimeClass::Activations).extents, 1u);
}

}  // namespace
}  // namespace hmshim::policy
