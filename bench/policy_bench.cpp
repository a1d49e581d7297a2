// What the decision maker costs a launch: run as `build/bench/policy_bench`. All figures are per launch of four
// extents.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "policy/engine.hpp"

namespace hmshim::policy {
namespace {

constexpr std::size_t kTouched = 4;
constexpr std::uint64_t kLaunchesPerIteration = 3500;  // of the longest trace that the design was studied on

using Launches = std::vector<std::array<ExtentId, kTouched>>;

// An iteration of random operands: no locality to hide the table's cache misses behind.
Launches random_iteration(std::uint64_t extents) {
  std::mt19937_64 random(1);
  Launches launches(kLaunchesPerIteration);
  for (auto& touched : launches) {
    for (ExtentId& extent : touched) extent = static_cast<ExtentId>(random() % extents);
  }
  return launches;
}

void play(benchmark::State& state, std::uint64_t budget_share_percent) {
  const auto extents = static_cast<std::uint64_t>(state.range(0));
  Engine engine({.policy = "on_demand", .budget_bytes = extents * kBlockBytes * budget_share_percent / 100});
  for (ExtentId id = 0; id < extents; ++id) engine.allocated({id, kBlockBytes});
  const Launches iteration = random_iteration(extents);
  Actions actions;
  Tick tick = 0;
  const auto launch = [&] {
    actions.clear();
    engine.launch({tick, tick % kLaunchesPerIteration, tick, iteration[tick % kLaunchesPerIteration]}, actions);
    ++tick;
  };
  for (std::uint64_t i = 0; i < 3 * kLaunchesPerIteration; ++i) launch();
  const std::uint64_t demotions = engine.totals().demotions;
  for (auto _ : state) launch();
  state.counters["demotions_per_launch"] = benchmark::Counter(
      static_cast<double>(engine.totals().demotions - demotions), benchmark::Counter::kAvgIterations);
}

void launch_all_resident(benchmark::State& state) { play(state, 100); }
BENCHMARK(launch_all_resident)->Arg(1'000)->Arg(100'000);

void launch_with_eviction(benchmark::State& state) { play(state, 5); }
BENCHMARK(launch_with_eviction)->Arg(1'000)->Arg(100'000);

void detector_in_steady_state(benchmark::State& state) {
  const auto period = static_cast<std::uint64_t>(state.range(0));
  IterationDetector detector;
  std::uint64_t launch = 0;
  for (; launch < 3 * period; ++launch) detector.observe(launch % period);
  for (auto _ : state) detector.observe(launch++ % period);
  if (detector.period_launches() != period) state.SkipWithError("the detector did not find the period");
}
BENCHMARK(detector_in_steady_state)->Arg(1'000)->Arg(100'000);

// The worst case: short repetitions begin and break off all the time.
void detector_on_random_launches(benchmark::State& state) {
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> signatures(1 << 16);
  for (std::uint64_t& signature : signatures) signature = random() % static_cast<std::uint64_t>(state.range(0));
  IterationDetector detector;
  std::uint64_t launch = 0;
  for (auto _ : state) {
    // Never the same 65536 twice, else they would be an iteration.
    detector.observe(signatures[launch % signatures.size()] ^ (launch >> 16));
    ++launch;
  }
}
BENCHMARK(detector_on_random_launches)->Arg(4)->Arg(1'000);

}  // namespace
}  // namespace hmshim::policy

BENCHMARK_MAIN();
