// What a schedule costs: the executor against a simulated device and link, in virtual time.
#pragma once

#include <cstdint>

#include "policy/cost_model.hpp"
#include "policy/schedule.hpp"
#include "policy/schedule_pieces.hpp"

namespace hmshim::policy {

// Of one iteration.
struct ScheduleCost {
  std::uint64_t iteration_ns = 0;
  std::uint64_t h2d_bytes = 0;
  std::uint64_t d2h_bytes = 0;
  std::uint64_t dropped_bytes = 0;  // left the device without a copy
  std::uint64_t emergencies = 0;
  std::uint64_t peak_used_bytes = 0;
};

// Runs `warm_up` iterations and returns the mean of the `measured` ones after them. Throws like ScheduleExecutor.
[[nodiscard]] ScheduleCost simulate(const PieceMap& map, const Schedule& schedule, const CostModel& cost,
                                    std::uint64_t capacity_bytes, std::uint32_t warm_up, std::uint32_t measured);

}  // namespace hmshim::policy
