// Carrying a plan out: the conductor, who follows the device and opens gates, and the migrators.
#include "interpose/pilot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "interpose/in_shim.hpp"
#include "interpose/log.hpp"

namespace hmshim::interpose {

namespace {

constexpr std::uint64_t kPatienceNs = 2'000'000'000;

}  // namespace

void Pilot::start_threads() {
  if (!enter_context() || progress_.allocate() != CUDA_SUCCESS) throw std::runtime_error("no pinned page to be had");
  conductor_.start(thread_body([this] { conduct(); }));
  fetcher_.start(thread_body([this] { fetch(); }));
  for (std::size_t i = 0; i < kWriters; ++i) writers_[i].worker.start(thread_body([this, i] { write_back(i); }));
}

// A thread that cannot go on, for want of memory, takes planning with it and not the program.
std::function<void()> Pilot::thread_body(std::function<void()> body) {
  return inside_shim([this, body = std::move(body)] {
    try {
      body();
    } catch (...) {
      log(LogLevel::Warn, "planning ends: one of the library's threads cannot go on");
      {
        const std::lock_guard lock(mutex_);
        end_planning();
      }
      conductor_.take_turn();  // the simulated device looks at its gates when somebody calls it
    }
  });
}

void Pilot::end_planning() noexcept {
  is_shut_.store(true, std::memory_order_relaxed);
  abandon();
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
      follower.begin(flight.resident, flight.is_branch, now_ns);
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
  uvm::for_each_stream(flight.streams, [&](std::size_t i) {
    has_reached &= uvm::Progress::widen(words[i], flight.first_step) >= flight.first_step;
  });
  return has_reached;
}

std::uint64_t Pilot::steps_finished(const Flight& flight, const uvm::Progress::Words& words) const {
  const policy::PlanFollower& follower = *flight.follower;
  std::uint64_t step = follower.finished_end();
  for (; step < follower.enqueued_end(); ++step) {
    bool is_finished = true;
    uvm::for_each_stream(follower.streams(step),
                         [&](std::size_t i) { is_finished &= uvm::Progress::widen(words[i], step + 1) >= step + 1; });
    if (!is_finished) break;
  }
  return step;
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
  try {
    believe();
  } catch (const std::bad_alloc&) {
    believed_.clear();  // as if all had gone to the host
  }
  next_step_ = std::max({next_step_, flights_.back().follower->enqueued_end(), opened_});
  opened_ = next_step_;
  progress_.open(opened_);
  const policy::LearnedPlan& plan = flights_.back().follower->plan();
  book_.note_end(plan, 0, plan.iteration->launches.size());
  flights_.clear();
  must_resync_ |= std::exchange(is_following_, false);
  ++totals_.divergences;
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
    for (std::size_t i = 0; i < kWriters; ++i) rings.writers[i] = std::exchange(writers_[i].is_idle, false);
  }
  return rings;
}

void Pilot::ring(const uvm::Worker& self, Rings rings) noexcept {
  if (rings.has_opened) self.take_turn();  // the simulated device looks at its gates when somebody calls it
  if (rings.planner) planner_.ring();
  if (rings.fetcher) fetcher_.ring();
  for (std::size_t i = 0; i < kWriters; ++i) {
    if (rings.writers[i]) writers_[i].worker.ring();
  }
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
  end_planning();
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

// The direction is busy as long as one of its calls is.
void Pilot::count_written(std::uint64_t bytes, std::uint64_t now_ns) {
  const bool is_moving =
      std::any_of(writers_.begin(), writers_.end(), [](const Writer& writer) { return writer.is_moving; });
  written_back_ += {bytes, is_moving ? now_ns - written_until_ns_ : 0};
  written_until_ns_ = now_ns;
}

void Pilot::write_back(std::size_t index) {
  Writer& writer = writers_[index];
  CUresult result = enter_context() ? writer.lane.open() : CUDA_ERROR_INVALID_CONTEXT;
  std::shared_ptr<policy::PlanFollower> follower;
  std::optional<policy::WriteBack> writeback;
  while (!writer.worker.is_stopping()) {
    writer.worker.take_turn();
    Rings rings;
    {
      const std::lock_guard lock(mutex_);
      const std::uint64_t now_ns = driver_.now_ns();
      const bool has_finished = writeback.has_value();
      count_written(writeback ? writeback->range.bytes : 0, now_ns);
      if (writeback) follower->writeback_finished(*writeback, now_ns);
      judge(result);
      follower = current();
      writeback = follower ? follower->start_writeback(now_ns) : std::nullopt;
      writer.is_moving = writeback.has_value();
      rings = spread(has_finished || writeback);
      writer.is_idle = !writeback;
    }
    rings.writers[index] = false;
    ring(writer.worker, rings);
    if (writeback) {
      result = writer.lane.move(writeback->range.base, writeback->range.bytes, CU_DEVICE_CPU);
    } else {
      writer.worker.wait();
    }
  }
}

}  // namespace hmshim::interpose
