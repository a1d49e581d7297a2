// Which gaps of the iteration a piece spends off the device.
#pragma once

#include <cstdint>

#include "policy/cost_model.hpp"
#include "policy/schedule.hpp"
#include "policy/schedule_pieces.hpp"

namespace hmshim::policy {

// What the planner's search varies.
struct Selection {
  // Share of the capacity that the schedule leaves to what arrives early and leaves late.
  double margin;
  // A piece whose eviction moves no bytes goes before one that must be written back if its next touch is at least this
  // share as far away. Above 1 it never does; without clean copies there is no such piece.
  double clean_weight;

  friend bool operator==(const Selection&, const Selection&) = default;
};

// Belady's rule on the iteration repeated until it is cyclic: when memory runs short, what is needed last goes, and it
// goes from the start of its gap. Linear in the touches, but for a logarithm.
[[nodiscard]] Schedule select_gaps(const PieceMap& map, const CostModel& cost, std::uint64_t capacity_bytes,
                                   const Selection& selection);

// Completes a schedule of which only is_away is set.
void derive_schedule(const PieceMap& map, const CostModel& cost, Schedule& schedule);

}  // namespace hmshim::policy
