#include "interpose/pilot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <stdexcept>
#include <utility>

#include "interpose/log.hpp"

namespace hmshim::interpose {

namespace {

constexpr double kLeastConfidence = 0.7;
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
constexpr std::uint64_t kPatienceNs = 2'000'000'000;
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

bool are_alike(const policy::Iteration& a, const policy::Iteration& b) noexcept {
  return std::equal(a.launches.begin(), a.launches.end(), b.launches.begin(), b.launches.end(),
                    [](const auto& x, const auto& y) { return x.signature == y.signature && x.stream == y.stream; }) &&
         a.operands == b.operands &&
         std::equal(a.extents.begin(), a.extents.end(), b.extents.begin(), b.extents.end(),
                    [](const auto& x, const auto& y) { return x.id == y.id && x.bytes == y.bytes; });
}

template <class Work>
void for_each_stream(std::uint8_t streams, Work&& work) {
  for (std::size_t i = 0; i < uvm::Progress::kStreams; ++i) {
    if ((streams >> i & 1) != 0) work(i);
  }
}

}  // namespace

double Pilot::Traffic::bytes_per_s(double otherwise) const noexcept {
  return bytes < kLeastMeasuredBytes ? otherwise : static_cast<double>(bytes) * 1e9 / static_cast<double>(busy_ns);
}

// ---- what the program does

void Pilot::allocated(policy::ExtentId extent, std::uint64_t base, std::uint64_t bytes, std::uint64_t context) {
  if (extent >= extents_.size()) extents_.resize(extent + 1);
  extents_[extent] = {base, bytes};
  recorder_.allocated(extent, bytes);
  const std::lock_guard lock(mutex_);
  context_ = context;
}

void Pilot::freed(policy::ExtentId extent) {
  if (extent < extents_.size()) extents_[extent] = {};
  recorder_.freed(extent);
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
      is_following_ || request_ || is_planning_ || !uvm::Progress::is_supported(driver_)) {
    return false;
  }
  if (iterations_to_skip_ > 0) {
    --iterations_to_skip_;
    return false;
  }
  std::optional<policy::Iteration> iteration = recorder_.last_iteration();
  if (!iteration || (plan_ != nullptr && are_alike(*plan_->iteration, *iteration))) return false;
  request_ = Request{std::make_shared<const policy::Iteration>(std::move(*iteration)), {}, budget_bytes};
  return true;
}

void Pilot::wake_planner() {
  if (is_planner_started_.exchange(true)) {
    planner_.ring();
  } else {
    planner_.start([this] { plan(); });
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
  const auto may_take_off = [&] {
    return plan_ != nullptr && !is_shut_.load(std::memory_order_relaxed) &&
           policy::PlanFollower::may_begin(*plan_, launch, extents_);
  };
  if (!is_following_) {
    clearance.has_ended = std::exchange(must_resync_, false);
    if (!may_take_off()) return clearance;
    if (starts_to_skip_ > 0) {
      --starts_to_skip_;
      return clearance;
    }
    take_off(plan_, is_resident, clearance);
  } else if (flights_.back().follower->is_between_iterations() && &flights_.back().follower->plan() != plan_.get() &&
             may_take_off()) {
    land(clearance);
    take_off(plan_, is_resident, clearance);
    flights_.back().continues = true;
  }

  Flight& flight = flights_.back();
  const policy::PlanFollower::Enqueued enqueued = flight.follower->enqueue(launch, extents_);
  clearance.is_planned = enqueued.match != Match::Diverged;
  clearance.is_certain = enqueued.is_settled;
  if (enqueued.match == Match::Diverged) {
    ++totals_.divergences;
    const bool was_short =
        flight.follower->followed_launches() < 2 * flight.follower->plan().iteration->launches.size();
    short_flights_ = was_short ? std::min(short_flights_ + 1, kMostBackOff) : 0;
    starts_to_skip_ = was_short ? (1U << short_flights_) - 1 : 0;
    believe();
    land(clearance);
    clearance.has_ended = true;
  }
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

void Pilot::take_off(const std::shared_ptr<const policy::LearnedPlan>& plan,
                     const std::function<bool(policy::ExtentId)>& is_resident, Clearance& clearance) {
  Flight flight{std::make_shared<policy::PlanFollower>(plan, next_step_, extents_), {}, next_step_, 0};
  for (const std::uint8_t streams : plan->steps.streams) flight.streams |= streams;
  is_in_plan_.assign(extents_.size(), false);
  for (const policy::Iteration::Extent& extent : plan->iteration->extents) {
    if (extent.id != policy::kNoExtent) is_in_plan_[extent.id] = true;
  }
  for (policy::ExtentId id = 0; id < extents_.size(); ++id) {
    if (extents_[id].bytes != 0 && is_resident(id)) flight.resident.push_back({extents_[id].base, extents_[id].bytes});
  }
  std::sort(flight.resident.begin(), flight.resident.end(),
            [](const policy::Range& a, const policy::Range& b) { return a.base < b.base; });
  clearance.has_begun = flights_.empty();
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
  return plan_ == nullptr ? 0 : plan_->iteration->launches.size();
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
  for_each_stream(clearance.reports, [&](std::size_t i) {
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
  for_each_stream(reports, [&](std::size_t i) {
    const CUstream stream = streams_[i].load(std::memory_order_relaxed);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const bool is_free =
        driver_.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
    if (is_free) static_cast<void>(progress_.report(stream, i, reported));
  });
}

// ---- the planner

void Pilot::plan() {
  while (!planner_.is_stopping()) {
    planner_.take_turn();
    std::optional<Request> request;
    policy::CostModel cost{};
    {
      const std::lock_guard lock(mutex_);
      request = std::exchange(request_, std::nullopt);
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
      declined_ = std::min(declined_ + 1, kMostBackOff);
      iterations_to_skip_ = (1U << declined_) - 1;
      continue;
    }
    log(LogLevel::Info, [&] {
      return fmt::format("plan: {} launches in {} steps, {:.3f} ms expected, {:.3f} ms without stalls, {} evaluations",
                         made->iteration->launches.size(), made->steps.count(),
                         static_cast<double>(made->plan.cost.iteration_ns) / 1e6,
                         static_cast<double>(made->map.compute_ns()) / 1e6, made->plan.evaluations);
    });
    declined_ = 0;
    ++totals_.plans;
    totals_.plan_evaluations += made->plan.evaluations;
    refinements_ = request->durations_ns.empty() ? 0 : refinements_ + 1;
    plan_ = std::move(made);
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

void Pilot::start_threads() {
  if (!enter_context() || progress_.allocate() != CUDA_SUCCESS) throw std::runtime_error("no pinned page to be had");
  conductor_.start([this] { conduct(); });
  fetcher_.start([this] { fetch(); });
  writer_.start([this] { write_back(); });
}

bool Pilot::enter_context() noexcept {
  std::uint64_t context = 0;
  {
    const std::lock_guard lock(mutex_);
    context = context_;
  }
  return driver_.cuCtxSetCurrent(reinterpret_cast<CUcontext>(context)) == CUDA_SUCCESS;
}

// ---- the conductor

void Pilot::conduct() {
  while (!conductor_.is_stopping()) {
    conductor_.take_turn();
    uvm::Progress::Words seen{};
    Rings rings;
    bool is_flying = false;
    {
      const std::lock_guard lock(mutex_);
      seen = progress_.read();
      const Progressed progressed = follow_progress(seen);
      rings = spread(progressed.has_changed);
      rings.planner = progressed.wants_plan;
      is_flying = !flights_.empty();
    }
    ring(conductor_, rings);
    conductor_.watch(progress_.words(), seen, is_flying ? kPatienceNs : 0);
  }
}

Pilot::Progressed Pilot::follow_progress(const uvm::Progress::Words& words) {
  const std::uint64_t now_ns = driver_.now_ns();
  Progressed progressed;
  while (!flights_.empty()) {
    Flight& flight = flights_.front();
    policy::PlanFollower& follower = *flight.follower;
    if (!follower.has_begun()) {
      if (!has_reached(flight, words)) break;
      follower.begin(flight.resident, now_ns);
      progressed.has_changed = true;
    }
    const std::uint64_t end = steps_finished(flight, words);
    progressed.has_changed |= end > follower.finished_end();
    if (end > follower.finished_end() && !follower.finish(end, now_ns)) {
      abandon();
      break;
    }
    follower.advance(now_ns);
    progressed.wants_plan |= wish_better_plan(flight);
    if (!follower.is_over()) break;
    std::vector<policy::Range> landed = follower.on_device();
    flights_.pop_front();
    // A flight that follows without a gap finds what this one has left.
    if (!flights_.empty() && flights_.front().continues) flights_.front().resident = std::move(landed);
  }
  if (is_stuck(now_ns)) abandon();
  return progressed;
}

bool Pilot::has_reached(const Flight& flight, const uvm::Progress::Words& words) const {
  bool has_reached = true;
  for_each_stream(flight.streams, [&](std::size_t i) {
    has_reached &= uvm::Progress::widen(words[i], flight.first_step) >= flight.first_step;
  });
  return has_reached;
}

std::uint64_t Pilot::steps_finished(const Flight& flight, const uvm::Progress::Words& words) const {
  const policy::PlanFollower& follower = *flight.follower;
  std::uint64_t step = follower.finished_end();
  for (; step < follower.enqueued_end(); ++step) {
    bool is_finished = true;
    for_each_stream(follower.streams(step),
                    [&](std::size_t i) { is_finished &= uvm::Progress::widen(words[i], step + 1) >= step + 1; });
    if (!is_finished) break;
  }
  return step;
}

bool Pilot::wish_better_plan(const Flight& flight) {
  std::vector<std::uint64_t> measured_ns = flight.follower->take_measured_durations();
  if (measured_ns.empty() || plan_.get() != &flight.follower->plan() || request_ || is_planning_) return false;
  const double tolerance = refinements_ < kMostRefinements ? kDriftToRefine : kDriftLater;
  if (drift(measured_ns, plan_->durations_ns) < tolerance && budget_bytes_ == plan_->capacity_bytes) return false;
  request_ = Request{plan_->iteration, std::move(measured_ns), budget_bytes_};
  return true;
}

// Nothing moves while the device waits at a gate.
bool Pilot::is_stuck(std::uint64_t now_ns) {
  if (flights_.empty()) return false;
  const policy::PlanFollower& follower = *flights_.front().follower;
  const bool is_at_gate =
      follower.has_begun() && follower.finished_end() < follower.enqueued_end() && follower.finished_end() >= opened_;
  const std::uint64_t state = follower.finished_end() + opened_ + fetched_.bytes + written_back_.bytes;
  if (!is_at_gate || state != stuck_state_) {
    stuck_state_ = state;
    stuck_since_ns_ = now_ns;
    return false;
  }
  return now_ns - stuck_since_ns_ >= kPatienceNs;
}

// Opens every gate. What is enqueued runs without a plan.
void Pilot::abandon() noexcept {
  if (flights_.empty()) return;
  believe();
  next_step_ = std::max({next_step_, flights_.back().follower->enqueued_end(), opened_});
  opened_ = next_step_;
  progress_.open(opened_);
  flights_.clear();
  must_resync_ |= std::exchange(is_following_, false);
  ++totals_.divergences;
  short_flights_ = std::min(short_flights_ + 1, kMostBackOff);
  starts_to_skip_ = (1U << short_flights_) - 1;
}

Pilot::Rings Pilot::spread(bool has_changed) {
  Rings rings;
  if (!flights_.empty() && flights_.front().follower->has_begun()) {
    const std::uint64_t opened = flights_.front().follower->opened();
    if (opened > opened_) {
      opened_ = opened;
      progress_.open(opened_);
      rings.has_opened = true;
    }
  }
  if (has_changed) {
    rings.fetcher = std::exchange(is_fetcher_idle_, false);
    rings.writer = std::exchange(is_writer_idle_, false);
  }
  return rings;
}

void Pilot::ring(const uvm::Worker& self, Rings rings) noexcept {
  if (rings.has_opened) self.take_turn();  // the simulated device looks at its gates when somebody calls it
  if (rings.planner) planner_.ring();
  if (rings.fetcher) fetcher_.ring();
  if (rings.writer) writer_.ring();
}

// ---- the migrators

std::shared_ptr<policy::PlanFollower> Pilot::current() const {
  const bool is_flying = !flights_.empty() && flights_.front().follower->has_begun();
  return is_flying ? flights_.front().follower : nullptr;
}

// An error of a range that has been freed meanwhile is none. Any other will come again: no more plans.
void Pilot::judge(CUresult result) {
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE) return;
  log(LogLevel::Warn,
      [&] { return fmt::format("planning ends: a migration failed with error {}", static_cast<int>(result)); });
  is_shut_.store(true, std::memory_order_relaxed);
  abandon();
}

void Pilot::fetch() {
  CUresult result = enter_context() ? fetch_lane_.open() : CUDA_ERROR_INVALID_CONTEXT;
  std::shared_ptr<policy::PlanFollower> follower;
  std::optional<policy::Fetch> fetch;
  std::uint64_t began_ns = 0;
  while (!fetcher_.is_stopping()) {
    fetcher_.take_turn();
    Rings rings;
    {
      const std::lock_guard lock(mutex_);
      const std::uint64_t now_ns = driver_.now_ns();
      const bool has_finished = fetch.has_value();
      if (fetch) {
        follower->fetch_finished(now_ns);
        if (!fetch->is_birth) fetched_ += {fetch->range.bytes, now_ns - began_ns};
      }
      judge(result);
      follower = current();
      fetch = follower ? follower->start_fetch(now_ns) : std::nullopt;
      rings = spread(has_finished || fetch);
      is_fetcher_idle_ = !fetch;
      began_ns = now_ns;
    }
    rings.fetcher = false;
    ring(fetcher_, rings);
    if (fetch) {
      result = fetch_lane_.move(fetch->range.base, fetch->range.bytes, static_cast<CUdevice>(device_));
    } else {
      fetcher_.wait();
    }
  }
}

void Pilot::write_back() {
  CUresult result = enter_context() ? writeback_lane_.open() : CUDA_ERROR_INVALID_CONTEXT;
  std::shared_ptr<policy::PlanFollower> follower;
  std::optional<policy::Range> range;
  std::uint64_t began_ns = 0;
  while (!writer_.is_stopping()) {
    writer_.take_turn();
    Rings rings;
    {
      const std::lock_guard lock(mutex_);
      const std::uint64_t now_ns = driver_.now_ns();
      const bool has_finished = range.has_value();
      if (range) {
        follower->writeback_finished(now_ns);
        written_back_ += {range->bytes, now_ns - began_ns};
      }
      judge(result);
      follower = current();
      range = follower ? follower->start_writeback(now_ns) : std::nullopt;
      rings = spread(has_finished || range);
      is_writer_idle_ = !range;
      began_ns = now_ns;
    }
    rings.writer = false;
    ring(writer_, rings);
    if (range) {
      result = writeback_lane_.move(range->base, range->bytes, CU_DEVICE_CPU);
    } else {
      writer_.wait();
    }
  }
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
  writer_.stop();
}

PilotTotals Pilot::totals() const {
  const std::lock_guard lock(mutex_);
  PilotTotals totals = totals_;
  totals.fetched_bytes = fetched_.bytes;
  totals.written_back_bytes = written_back_.bytes;
  return totals;
}

}  // namespace hmshim::interpose
