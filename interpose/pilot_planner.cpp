// The planner: what it is asked for, with what it reckons, and what becomes of its plans.
#include "interpose/pilot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <utility>

#include "interpose/log.hpp"

namespace hmshim::interpose {

namespace {

// Until moves have been measured. Too low costs less than too high: a plan that comes early waits, one that is late
// stalls the device.
constexpr double kAssumedBytesPerS = 12e9;
constexpr std::uint64_t kCallNs = 15'000;
constexpr std::uint64_t kBlockNs = 3'000;
// Rates of fewer bytes say little.
constexpr std::uint64_t kLeastMeasuredBytes = std::uint64_t{64} << 20;
// The plan is made anew when launches take this much longer or shorter than it assumes; the first times it pays to be
// exact, later it is only drift.
constexpr double kDriftToRefine = 0.03;
constexpr double kDriftLater = 0.25;
constexpr std::uint32_t kMostRefinements = 3;
constexpr std::uint32_t kMostBackOff = 10;  // as a power of two

double drift(std::span<const std::uint64_t> now, std::span<const std::uint64_t> before) noexcept {
  double difference = 0, sum = 0;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const auto a = static_cast<double>(now[i]), b = static_cast<double>(before[i]);
    difference += std::abs(a - b);
    sum += b;
  }
  return difference / sum;
}

}  // namespace

double Pilot::Traffic::bytes_per_s(double otherwise) const noexcept {
  return bytes < kLeastMeasuredBytes ? otherwise : static_cast<double>(bytes) * 1e9 / static_cast<double>(busy_ns);
}

void Pilot::plan() {
  while (!planner_.is_stopping()) {
    planner_.take_turn();
    std::optional<Request> request;
    policy::CostModel cost{};
    {
      const std::lock_guard lock(mutex_);
      if (!requests_.empty()) {
        request = std::move(requests_.front());
        requests_.pop_front();
      }
      is_planning_ = request.has_value();
      cost = cost_model();
    }
    if (!request) {
      planner_.wait();
      continue;
    }
    std::shared_ptr<const policy::LearnedPlan> made;
    const auto begin = std::chrono::steady_clock::now();
    const bool is_first = !conductor_.is_started();
    try {
      std::vector<std::uint64_t> durations_ns =
          request->durations_ns.empty() ? policy::estimate_durations(*request->iteration) : request->durations_ns;
      made = policy::make_learned_plan(request->iteration, std::move(durations_ns), cost, request->budget_bytes);
      if (made != nullptr && is_first) start_threads();
    } catch (const std::exception& error) {
      log(LogLevel::Warn, [&] { return fmt::format("no plan for this iteration: {}", error.what()); });
      made = nullptr;
    }
    const auto spent = std::chrono::steady_clock::now() - begin;

    const std::lock_guard lock(mutex_);
    is_planning_ = false;
    totals_.plan_ns += static_cast<std::uint64_t>(std::chrono::nanoseconds(spent).count());
    if (made == nullptr) {
      const std::uint64_t launches = request->iteration->launches.size();
      declined_ = launches == std::exchange(declined_launches_, launches) ? std::min(declined_ + 1, kMostBackOff) : 1;
      iterations_to_skip_ = (1U << declined_) - 1;
      continue;
    }
    log(LogLevel::Info, [&] {
      return fmt::format("plan: {} launches in {} steps, {:.3f} ms expected, {:.3f} ms without stalls, {} evaluations",
                         made->iteration->launches.size(), made->steps.count(),
                         static_cast<double>(made->plan.cost.iteration_ns) / 1e6,
                         static_cast<double>(made->map.compute_ns()) / 1e6, made->plan.evaluations);
    });
    declined_launches_ = 0;
    ++totals_.plans;
    totals_.plan_evaluations += made->plan.evaluations;
    const bool is_refined = !request->durations_ns.empty() && !request->is_foreseen;
    policy::PlanBook::Page& page = book_.keep(std::move(made));
    page.refinements = is_refined ? page.refinements + 1 : 0;
    page.is_unproven = request->is_foreseen;
    is_engaged_.store(true, std::memory_order_release);
  }
}

policy::CostModel Pilot::cost_model() const {
  policy::CostModel cost{fetched_.bytes_per_s(kAssumedBytesPerS), written_back_.bytes_per_s(kAssumedBytesPerS)};
  cost.clean_copies = false;
  // What has been measured contains them.
  if (fetched_.bytes < kLeastMeasuredBytes) {
    cost.call_ns = kCallNs;
    cost.block_ns = kBlockNs;
  }
  return cost;
}

bool Pilot::wish_better_plan(const Flight& flight) {
  std::vector<std::uint64_t> measured_ns = flight.follower->take_measured_durations();
  if (measured_ns.empty() || !requests_.empty() || is_planning_) return false;
  const policy::LearnedPlan& plan = flight.follower->plan();
  const policy::PlanBook::Page* page = book_.find(*plan.iteration);
  if (page == nullptr || page->plan.get() != &plan) return false;
  const double tolerance = page->refinements < kMostRefinements ? kDriftToRefine : kDriftLater;
  if (drift(measured_ns, plan.durations_ns) < tolerance && budget_bytes_ == plan.budget_bytes) return false;
  requests_.push_back({plan.iteration, std::move(measured_ns), budget_bytes_});
  return true;
}

}  // namespace hmshim::interpose
