// A recorded iteration with the plan of its migrations: made off the guest's threads, then read by everyone and changed
// by no one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "policy/access_pattern.hpp"
#include "policy/cost_model.hpp"
#include "policy/pattern_recorder.hpp"
#include "policy/planner.hpp"
#include "policy/schedule_pieces.hpp"
#include "policy/vocabulary.hpp"

namespace hmshim::policy {

// Launches that a plan treats as one: they begin when the first one's data is there, and their end is reported once.
// Asking and reporting costs the guest a driver call and the device a semaphore each, so short launches share them.
struct Steps {
  std::vector<LaunchIndex> first_launch;    // by step
  std::vector<LaunchIndex> step_of_launch;  // by launch
  std::vector<std::uint8_t> streams;        // by step: bit i for stream i

  [[nodiscard]] LaunchIndex count() const noexcept { return static_cast<LaunchIndex>(first_launch.size()); }
  [[nodiscard]] LaunchIndex launches_end(LaunchIndex step) const noexcept {
    return step + 1 < count() ? first_launch[step + 1] : static_cast<LaunchIndex>(step_of_launch.size());
  }
};

// A step ends where it has lasted this long, or touches more than this share of the capacity.
inline constexpr std::uint64_t kStepNs = 100'000;
inline constexpr std::uint64_t kStepsPerCapacity = 64;
// Streams that a plan can tell apart.
inline constexpr std::uint8_t kMostStreams = 8;

[[nodiscard]] Steps make_steps(const Iteration& iteration, std::span<const std::uint64_t> durations_ns,
                               std::uint64_t capacity_bytes);
// The iteration in steps. Launches are assumed to write whatever they name.
[[nodiscard]] AccessPattern pattern_of(const Iteration& iteration, const Steps& steps,
                                       std::span<const std::uint64_t> durations_ns);

// How long launches may take, from the bytes that they touch, until they have been measured.
[[nodiscard]] std::vector<std::uint64_t> estimate_durations(const Iteration& iteration);

struct LearnedPlan {
  std::shared_ptr<const Iteration> iteration;
  std::vector<std::uint64_t> durations_ns;  // by launch: what the plan was made from
  CostModel cost;
  std::uint64_t budget_bytes;
  std::uint64_t capacity_bytes;  // of the budget, what the plan uses
  Steps steps;
  PieceMap map;  // its launches are the steps
  Plan plan;

  // What the program has freed and uses again soon may stay where it is, up to this: dropping and populating memory
  // costs time in the driver. Half of what the plan leaves; the rest is for what is on its way out of the device.
  [[nodiscard]] std::uint64_t most_retired_bytes() const noexcept { return (budget_bytes - capacity_bytes) / 2; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept;
};

// Nothing when there is nothing to plan - the iteration fits - or no plan is possible: one launch touches more than the
// budget, or it uses too many streams.
[[nodiscard]] std::shared_ptr<const LearnedPlan> make_learned_plan(std::shared_ptr<const Iteration> iteration,
                                                                   std::vector<std::uint64_t> durations_ns,
                                                                   const CostModel& cost, std::uint64_t budget_bytes);

}  // namespace hmshim::policy
