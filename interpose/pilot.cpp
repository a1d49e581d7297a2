#include "interpose/pilot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace hmshim::interpose {

namespace {

constexpr double kLeastConfidence = 0.7;

}  // namespace

void Pilot::foresee(const LearnedPattern& pattern, std::uint64_t budget_bytes) {
  if (!uvm::Progress::is_supported(driver_)) return;
  const std::lock_guard lock(mutex_);
  budget_bytes_ = budget_bytes;
  foreseen_.push_back({pattern.iteration, pattern.durations_ns, budget_bytes, true});
}

bool Pilot::allocated(policy::ExtentId extent, const policy::LiveExtent& live, std::uint64_t context) {
  recorder_.allocated(extent, live.bytes);
  const std::lock_guard lock(mutex_);
  if (extent >= extents_.size()) extents_.resize(extent + 1);
  extents_[extent] = live;
  context_ = context;
  for (Request& request : foreseen_) requests_.push_back(std::move(request));
  return !std::exchange(foreseen_, {}).empty();
}

void Pilot::discarded(policy::ExtentId extent) {
  const std::lock_guard lock(mutex_);
  extents_[extent].is_backed = false;
}

void Pilot::freed(policy::ExtentId extent) {
  recorder_.freed(extent);
  const std::lock_guard lock(mutex_);
  if (extent < extents_.size()) extents_[extent] = {};
}

void Pilot::record(const policy::Launch& launch, bool is_copy) {
  is_copy ? recorder_.copy(launch) : recorder_.launch(launch);
}

bool Pilot::iteration_completed(std::uint64_t launches, double confidence, std::uint64_t footprint_bytes,
                                std::uint64_t budget_bytes) {
  const std::lock_guard lock(mutex_);
  budget_bytes_ = budget_bytes;
  recorder_.end_iteration(launches);
  if (footprint_bytes <= budget_bytes || is_shut_.load(std::memory_order_relaxed) || confidence < kLeastConfidence ||
      is_following_ || !requests_.empty() || is_planning_ || !uvm::Progress::is_supported(driver_)) {
    return false;
  }
  if (iterations_to_skip_ > 0 && launches == declined_launches_) {
    --iterations_to_skip_;
    return false;
  }
  std::optional<policy::Iteration> iteration = recorder_.last_iteration();
  if (!iteration || book_.find(*iteration) != nullptr) return false;
  disprove(*iteration);
  requests_.push_back({std::make_shared<const policy::Iteration>(std::move(*iteration)), {}, budget_bytes});
  return true;
}

void Pilot::wake_planner() {
  if (is_planner_started_.exchange(true)) {
    planner_.ring();
  } else {
    planner_.start(thread_body([this] { plan(); }));
  }
}

Pilot::Clearance Pilot::enqueue(const policy::Launch& launch, CUstream stream,
                                const std::function<bool(policy::ExtentId)>& is_resident) {
  using Match = policy::PlanFollower::Match;
  const std::lock_guard lock(mutex_);
  Clearance clearance;
  clearance.fetched_bytes = fetched_.bytes - std::exchange(told_.fetched_bytes, fetched_.bytes);
  clearance.written_back_bytes = written_back_.bytes - std::exchange(told_.written_back_bytes, written_back_.bytes);
  if (launch.stream < streams_.size()) streams_[launch.stream].store(stream, std::memory_order_relaxed);
  if (!is_following_) {
    clearance.has_ended = std::exchange(must_resync_, false);
    if (is_shut_.load(std::memory_order_relaxed)) return clearance;
    const auto entry = book_.enter(launch, extents_);
    if (!entry) return clearance;
    take_off(std::make_shared<policy::PlanFollower>(entry->page->plan, next_step_, extents_), *entry->page, is_resident,
             clearance);
  } else if (flights_.back().follower->is_between_iterations()) {
    renew(launch, is_resident, clearance);
  }

  policy::PlanFollower::Enqueued enqueued = flights_.back().follower->enqueue(launch, extents_);
  if (enqueued.match != Match::Expected && branch(launch, is_resident, clearance))
    enqueued = flights_.back().follower->enqueue(launch, extents_);
  const Flight& flight = flights_.back();
  clearance.is_planned = enqueued.match != Match::Diverged;
  clearance.is_certain = enqueued.is_settled;
  clearance.most_retired_bytes = flight.follower->plan().most_retired_bytes();
  if (enqueued.match == Match::Diverged) diverge(clearance);
  if (enqueued.match != Match::Expected) return clearance;
  ++totals_.planned_launches;
  if (enqueued.begins_step && enqueued.step > flight.first_step && reported_ < enqueued.step) {
    clearance.reports = flight.follower->streams(enqueued.step - 1);
    clearance.reported = reported_ = enqueued.step;
  }
  if (enqueued.begins_stream && enqueued.step >= opened_) {
    clearance.gate = enqueued.step + 1;
    ++totals_.gates;
  }
  // A step that is next to be opened may only have waited to be known.
  const bool is_next = enqueued.begins_step && flights_.size() == 1 && enqueued.step == flight.follower->opened();
  if (is_next && std::exchange(is_fetcher_idle_, false)) clearance.rings_fetcher = true;
  return clearance;
}

// The program goes round in another way than those of other runs whose plans it has never gone round.
void Pilot::disprove(const policy::Iteration& iteration) {
  using Mismatch = policy::PlanFollower::Mismatch;
  std::string closest;
  policy::LaunchIndex most = 0;
  for (const auto& plan : book_.drop_unproven()) {
    const policy::Difference difference = policy::first_difference(*plan->iteration, iteration);
    if (!closest.empty() && difference.launch <= most) continue;
    most = difference.launch;
    const auto what = [&]() -> std::string_view {
      switch (difference.what) {
        case Mismatch::Stream:
          return "is in another stream";
        case Mismatch::Count:
          return "names another number of allocations";
        case Mismatch::Size:
          return "names an allocation of another size";
        case Mismatch::Extent:
          return "names another allocation";
        default:
          return "is another kernel, or of another shape";
      }
    };
    closest = fmt::format("launch {} of the iteration's {} {}", difference.launch + 1, plan->iteration->launches.size(),
                          what());
  }
  if (!closest.empty()) disproof_ = std::move(closest);
}

std::vector<LearnedPattern> Pilot::patterns() const {
  const std::lock_guard lock(mutex_);
  std::vector<LearnedPattern> patterns;
  for (const auto& page : book_.pages()) {
    if (!page->is_unproven) patterns.push_back({device_, page->plan->iteration, page->plan->durations_ns});
  }
  return patterns;
}

std::string Pilot::disproof() const {
  const std::lock_guard lock(mutex_);
  const auto pages = book_.pages();
  const bool has_unproven = std::any_of(pages.begin(), pages.end(), [](const auto& page) { return page->is_unproven; });
  return disproof_.empty() && has_unproven ? "the program has not gone round an iteration of it" : disproof_;
}

// Goes on with a better plan of the same iteration, where there is one.
void Pilot::renew(const policy::Launch& launch, const std::function<bool(policy::ExtentId)>& is_resident,
                  Clearance& clearance) {
  const policy::LearnedPlan& plan = flights_.back().follower->plan();
  policy::PlanBook::Page* page = book_.find(*plan.iteration);
  if (page != nullptr && flights_.back().follower->has_gone_round()) page->is_unproven = false;
  if (page == nullptr || page->plan.get() == &plan || is_shut_.load(std::memory_order_relaxed)) return;
  if (policy::PlanFollower::mismatch(*page->plan, 0, launch, extents_) != policy::PlanFollower::Mismatch::None) return;
  land(clearance);
  take_off(std::make_shared<policy::PlanFollower>(page->plan, next_step_, extents_, 0, *flights_.back().follower),
           *page, is_resident, clearance);
  flights_.back().continues = true;
}

// Goes on with another plan, at the launch that the one so far does not expect.
bool Pilot::branch(const policy::Launch& launch, const std::function<bool(policy::ExtentId)>& is_resident,
                   Clearance& clearance) {
  const std::shared_ptr<policy::PlanFollower> from = flights_.back().follower;
  if (is_shut_.load(std::memory_order_relaxed)) return false;
  const auto entry = book_.branch(*from, launch, extents_);
  if (!entry) return false;
  book_.note_end(from->plan(), from->followed_launches(), from->plan().iteration->launches.size());
  land(clearance);
  take_off(std::make_shared<policy::PlanFollower>(entry->page->plan, next_step_, extents_, entry->position, *from),
           *entry->page, is_resident, clearance);
  flights_.back().continues = flights_.back().is_branch = true;
  return true;
}

void Pilot::diverge(Clearance& clearance) {
  ++totals_.divergences;
  const policy::PlanFollower& follower = *flights_.back().follower;
  book_.note_end(follower.plan(), follower.followed_launches(), 2 * follower.plan().iteration->launches.size());
  believe();
  land(clearance);
  clearance.has_ended = true;
}

void Pilot::take_off(std::shared_ptr<policy::PlanFollower> follower, policy::PlanBook::Page& page,
                     const std::function<bool(policy::ExtentId)>& is_resident, Clearance& clearance) {
  const policy::LearnedPlan& plan = *page.plan;
  book_.note_use(page);
  Flight flight{std::move(follower), {}, next_step_, 0};
  for (const std::uint8_t streams : plan.steps.streams) flight.streams |= streams;
  clearance.has_begun = flights_.empty();
  if (clearance.has_begun) is_in_plan_.clear();
  is_in_plan_.resize(extents_.size());
  for (const policy::Iteration::Extent& extent : plan.iteration->extents) {
    if (extent.id < is_in_plan_.size()) is_in_plan_[extent.id] = true;
  }
  for (policy::ExtentId id = 0; id < extents_.size(); ++id) {
    if (extents_[id].bytes != 0 && is_resident(id)) flight.resident.push_back({extents_[id].base, extents_[id].bytes});
  }
  std::sort(flight.resident.begin(), flight.resident.end(),
            [](const policy::Range& a, const policy::Range& b) { return a.base < b.base; });
  // Everything before is over when the streams have come here.
  clearance.reports |= flight.streams;
  clearance.reported = reported_ = next_step_;
  clearance.rings_conductor = true;
  flights_.push_back(std::move(flight));
  is_following_ = true;
}

// The program leaves the plan: what it has enqueued is still served.
void Pilot::land(Clearance& clearance) {
  policy::PlanFollower& follower = *flights_.back().follower;
  follower.end();
  next_step_ = std::max(follower.enqueued_end(), opened_);
  clearance.reports |= follower.streams(follower.enqueued_end() - 1);
  clearance.reported = reported_ = follower.enqueued_end();
  clearance.rings_conductor = true;
  is_following_ = false;
}

void Pilot::believe() {
  const Flight& flight = flights_.front();
  believed_ = flight.follower->has_begun() ? flight.follower->on_device() : flight.resident;
}

bool Pilot::enqueue_within_step(const policy::Launch& launch) noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_following_ || !flights_.back().follower->enqueue_within_step(launch, extents_)) return false;
  ++totals_.planned_launches;
  return true;
}

bool Pilot::is_following() const {
  const std::lock_guard lock(mutex_);
  return is_following_;
}

bool Pilot::is_in_plan(policy::ExtentId extent) const {
  const std::lock_guard lock(mutex_);
  return extent < is_in_plan_.size() && is_in_plan_[extent];
}

std::uint64_t Pilot::planned_launches() const {
  const std::lock_guard lock(mutex_);
  return flights_.empty() ? 0 : flights_.back().follower->plan().iteration->launches.size();
}

bool Pilot::is_of(std::uint64_t context) const {
  const std::lock_guard lock(mutex_);
  return context_ == context;
}

bool Pilot::is_on_device(policy::ExtentId extent) const {
  const std::lock_guard lock(mutex_);
  return policy::covers(believed_, {extents_[extent].base, extents_[extent].bytes});
}

void Pilot::issue(const Clearance& clearance, CUstream stream) noexcept {
  bool has_failed = false;
  uvm::for_each_stream(clearance.reports, [&](std::size_t i) {
    const CUstream reporting = streams_[i].load(std::memory_order_relaxed);
    has_failed |= progress_.report(reporting, i, clearance.reported) != CUDA_SUCCESS;
  });
  if (clearance.gate != 0) has_failed |= progress_.wait_until_open(stream, clearance.gate) != CUDA_SUCCESS;
  if (has_failed) {
    const std::lock_guard lock(mutex_);
    abandon();
  }
  if (clearance.rings_conductor) conductor_.ring();
  if (clearance.rings_fetcher) fetcher_.ring();
}

void Pilot::settle() noexcept {
  std::uint8_t reports = 0;
  std::uint64_t reported = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!is_following_ || !flights_.back().follower->is_between_steps()) return;
    const policy::PlanFollower& follower = *flights_.back().follower;
    if (reported_ >= follower.enqueued_end()) return;
    reported = reported_ = follower.enqueued_end();
    reports = follower.streams(reported - 1);
  }
  uvm::for_each_stream(reports, [&](std::size_t i) {
    const CUstream stream = streams_[i].load(std::memory_order_relaxed);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const bool is_free =
        driver_.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
    if (is_free) static_cast<void>(progress_.report(stream, i, reported));
  });
}

void Pilot::shut() noexcept {
  is_shut_.store(true, std::memory_order_relaxed);
  is_engaged_.store(false, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    abandon();
  }
  planner_.stop();
  conductor_.stop();
  fetcher_.stop();
  for (Writer& writer : writers_) writer.worker.stop();
}

PilotTotals Pilot::totals() const {
  const std::lock_guard lock(mutex_);
  PilotTotals totals = totals_;
  totals.fetched_bytes = fetched_.bytes;
  totals.written_back_bytes = written_back_.bytes;
  return totals;
}

}  // namespace hmshim::interpose
