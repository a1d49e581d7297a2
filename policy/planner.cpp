#include "policy/planner.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

namespace hmshim::policy {
namespace {

// Within this of compute time there is nothing left worth searching for.
constexpr double kGoodEnough = 1.0008;

// The executor's steady state shows in the third iteration: the first starts from nothing in flight, the second from
// projections that the first has measured.
constexpr std::uint32_t kWarmUp = 2;

class Search {
 public:
  Search(const PieceMap& map, const CostModel& cost, std::uint64_t capacity_bytes, std::uint32_t max_evaluations)
      : map_(map), cost_(cost), capacity_bytes_(capacity_bytes), max_evaluations_(std::max(max_evaluations, 1U)) {}

  Plan run() {
    // Coarse along each axis, then around the best. The weight matters only where some evictions are free.
    constexpr double kMargins[] = {0.01, 0.03, 0.08};
    constexpr double kWeights[] = {0.12, 0.05, 0.25, 0.03, 0.01, 0.5};
    constexpr double kSteps[] = {0.7, 1.4, 0.85, 1.2};
    try_selection({0, 0.07});
    if (cost_.clean_copies) {
      for (const double weight : kWeights) try_selection({0, weight});
    }
    for (const double margin : kMargins) try_selection({margin, best_.selection.clean_weight});
    for (const double step : kSteps) {
      if (cost_.clean_copies) try_selection({best_.selection.margin, best_.selection.clean_weight * step});
      try_selection({best_.selection.margin + 0.01 * (step - 1), best_.selection.clean_weight});
    }
    best_.evaluations = static_cast<std::uint32_t>(tried_.size());
    return std::move(best_);
  }

 private:
  void try_selection(Selection selection) {
    selection.margin = std::max(selection.margin, 0.0);
    const bool is_done = !tried_.empty() && static_cast<double>(best_.cost.iteration_ns) <=
                                                kGoodEnough * static_cast<double>(map_.compute_ns());
    if (is_done || tried_.size() == max_evaluations_ ||
        std::find(tried_.begin(), tried_.end(), selection) != tried_.end()) {
      return;
    }
    Schedule schedule = select_gaps(map_, cost_, capacity_bytes_, selection);
    const ScheduleCost cost = simulate(map_, schedule, cost_, capacity_bytes_, kWarmUp, 1);
    if (tried_.empty() || cost.iteration_ns < best_.cost.iteration_ns) {
      best_ = {std::move(schedule), cost, selection};
    }
    tried_.push_back(selection);
  }

  const PieceMap& map_;
  const CostModel& cost_;
  std::uint64_t capacity_bytes_;
  std::uint32_t max_evaluations_;
  std::vector<Selection> tried_;
  Plan best_;
};

}  // namespace

std::optional<Plan> make_plan(const PieceMap& map, const CostModel& cost, std::uint64_t capacity_bytes,
                              std::uint32_t max_evaluations) {
  if (!(cost.h2d_bytes_per_s > 0 && cost.d2h_bytes_per_s > 0)) {
    throw std::invalid_argument("the cost model's link rates must be above zero bytes a second");
  }
  if (map.touched_bytes(map.largest_launch()) > capacity_bytes) return std::nullopt;
  return Search(map, cost, capacity_bytes, max_evaluations).run();
}

}  // namespace hmshim::policy
