// Pattern, cost model and capacity → the schedule of a steady iteration.
#pragma once

#include <cstdint>
#include <optional>

#include "policy/cost_model.hpp"
#include "policy/planner_select.hpp"
#include "policy/schedule.hpp"
#include "policy/schedule_pieces.hpp"
#include "policy/schedule_simulation.hpp"

namespace hmshim::policy {

struct Plan {
  Schedule schedule;
  ScheduleCost cost;              // what the cost model expects of it
  Selection selection;            // what the search settled on
  std::uint32_t evaluations = 0;  // schedules tried
};

inline constexpr std::uint32_t kPlanEvaluations = 24;

// Pure and deterministic: limited by evaluations, never by a clock. Nothing when one launch alone touches more than the
// capacity; map.largest_launch() is the one. Throws std::invalid_argument unless both rates are above zero.
[[nodiscard]] std::optional<Plan> make_plan(const PieceMap& map, const CostModel& cost, std::uint64_t capacity_bytes,
                                            std::uint32_t max_evaluations = kPlanEvaluations);

}  // namespace hmshim::policy
