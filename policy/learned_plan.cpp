#include "policy/learned_plan.hpp"

#include <algorithm>
#include <utility>

namespace hmshim::policy {
namespace {

constexpr LaunchIndex kNone = ~LaunchIndex{0};

// Between what memory-bound and compute-bound kernels of the last ten years reach; the first plan only needs the order
// of magnitude.
constexpr std::uint64_t kTouchedBytesPerUs = 200'000;
constexpr std::uint64_t kShortestLaunchNs = 5'000;

// Share of the budget that a plan does not use.
constexpr std::uint64_t kReserved = 32;

}  // namespace

std::vector<std::uint64_t> estimate_durations(const Iteration& iteration) {
  std::vector<std::uint64_t> durations_ns;
  for (LaunchIndex k = 0; k < iteration.launches.size(); ++k) {
    std::uint64_t bytes = 0;
    for (const PatternExtent extent : iteration.operands_of(k)) {
      if (extent != kUnplanned) bytes += iteration.extents[extent].bytes;
    }
    durations_ns.push_back(std::max(bytes * 1000 / kTouchedBytesPerUs, kShortestLaunchNs));
  }
  return durations_ns;
}

Steps make_steps(const Iteration& iteration, std::span<const std::uint64_t> durations_ns,
                 std::uint64_t capacity_bytes) {
  Steps steps;
  std::vector<LaunchIndex> touched_in(iteration.extents.size(), kNone);  // the last step that did
  std::uint64_t duration_ns = 0, bytes = 0;
  for (LaunchIndex k = 0; k < iteration.launches.size(); ++k) {
    // What is born in a step must not have been used up in it: the two lives would be one.
    const auto ends_a_life = [&](PatternExtent extent) {
      return extent != kUnplanned && iteration.extents[extent].born == k && touched_in[extent] + 1 == steps.count();
    };
    const auto operands = iteration.operands_of(k);
    const bool may_begin = k == 0 || !iteration.launches[k].is_part;
    if (may_begin && (k == 0 || duration_ns >= kStepNs || bytes >= capacity_bytes / kStepsPerCapacity ||
                      std::any_of(operands.begin(), operands.end(), ends_a_life))) {
      steps.first_launch.push_back(k);
      steps.streams.push_back(0);
      duration_ns = bytes = 0;
    }
    const LaunchIndex step = steps.count() - 1;
    steps.step_of_launch.push_back(step);
    steps.streams.back() |= static_cast<std::uint8_t>(1U << iteration.launches[k].stream);
    duration_ns += durations_ns[k];
    for (const PatternExtent extent : operands) {
      if (extent == kUnplanned || touched_in[extent] == step) continue;
      touched_in[extent] = step;
      bytes += iteration.extents[extent].bytes;
    }
  }
  return steps;
}

AccessPattern pattern_of(const Iteration& iteration, const Steps& steps, std::span<const std::uint64_t> durations_ns) {
  AccessPattern pattern;
  for (const Iteration::Extent& extent : iteration.extents) {
    pattern.add_extent(extent.bytes, extent.born == kPersistent ? kPersistent : steps.step_of_launch[extent.born]);
  }
  std::vector<ExtentTouch> touches;
  for (LaunchIndex step = 0; step < steps.count(); ++step) {
    std::uint64_t duration_ns = 0;
    touches.clear();
    for (LaunchIndex k = steps.first_launch[step]; k < steps.launches_end(step); ++k) {
      duration_ns += durations_ns[k];
      for (const PatternExtent extent : iteration.operands_of(k)) {
        if (extent != kUnplanned) touches.push_back({extent, true});
      }
    }
    std::sort(touches.begin(), touches.end(),
              [](const ExtentTouch& a, const ExtentTouch& b) { return a.extent < b.extent; });
    const auto end = std::unique(touches.begin(), touches.end(),
                                 [](const ExtentTouch& a, const ExtentTouch& b) { return a.extent == b.extent; });
    touches.erase(end, touches.end());
    pattern.add_launch(duration_ns, touches);
  }
  return pattern;
}

std::size_t LearnedPlan::memory_bytes() const noexcept {
  const auto bytes = [](const auto&... vectors) { return ((vectors.capacity() * sizeof(vectors[0])) + ...); };
  return bytes(iteration->launches, iteration->operands, iteration->extents, durations_ns, steps.first_launch,
               steps.step_of_launch, steps.streams, plan.schedule.is_away, plan.schedule.preclean_ticks,
               plan.schedule.base_bytes) +
         map.memory_bytes();
}

std::shared_ptr<const LearnedPlan> make_learned_plan(std::shared_ptr<const Iteration> iteration,
                                                     std::vector<std::uint64_t> durations_ns, const CostModel& cost,
                                                     std::uint64_t budget_bytes) {
  const auto is_numbered = [](const Iteration::Launch& launch) { return launch.stream < kMostStreams; };
  if (!std::all_of(iteration->launches.begin(), iteration->launches.end(), is_numbered)) return nullptr;
  Steps steps = make_steps(*iteration, durations_ns, budget_bytes);
  PieceMap map(pattern_of(*iteration, steps, durations_ns), budget_bytes);
  if (map.peak_live_bytes() <= budget_bytes) return nullptr;
  const std::uint64_t capacity_bytes =
      std::clamp(map.touched_bytes(map.largest_launch()), budget_bytes - budget_bytes / kReserved, budget_bytes);
  std::optional<Plan> plan = make_plan(map, cost, capacity_bytes);
  if (!plan) return nullptr;
  return std::make_shared<const LearnedPlan>(LearnedPlan{std::move(iteration), std::move(durations_ns), cost,
                                                         budget_bytes, capacity_bytes, std::move(steps), std::move(map),
                                                         std::move(*plan)});
}

}  // namespace hmshim::policy
