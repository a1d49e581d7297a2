#include "tests/simgpu/model/simulation.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace hmshim::simgpu::machine {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(1);

thread_local bool t_in_body = false;

struct CurrentAgent {
  const void* simulation = nullptr;
  AgentId agent = kGuest;
};
thread_local CurrentAgent t_agent;

}  // namespace

Simulation::Simulation(const Options& options)
    : machine(options.profile, options.device_count),
      engine(machine, options.device_count, [this](const Body& body) { run_body(body); }),
      on_stall_(options.on_stall),
      stall_report_s_(options.stall_report_s) {}

bool Simulation::in_body() { return t_in_body; }

AgentId Simulation::current_agent() const { return t_agent.simulation == this ? t_agent.agent : kGuest; }

void Simulation::become(AgentId agent) const { t_agent = {this, agent}; }

void Simulation::announce() {
  satisfy_waiters();
  ++progress_count_;
  has_reported_stall_ = false;
  call_sleepers();
}

void Simulation::Lock::release() {
  if (held_.owns_lock()) simulation_.unlock(*held_.release());
}

void Simulation::unlock(std::mutex& held) const {
  const auto ringing = std::exchange(ringing_, {});
  held.unlock();
  for (std::condition_variable* bell : ringing) bell->notify_one();
}

void Simulation::run_body(const Body& body) {
  unlock(mutex_);
  t_in_body = true;
  body();
  t_in_body = false;
  mutex_.lock();
}

bool Simulation::has_event_until(TimeNs time_ns) const {
  const auto next = engine.next_event_at();
  return next && *next <= time_ns;
}

bool Simulation::can_step() const {
  const auto next = engine.next_event_at();
  if (is_stepping_ || !next) return false;
  const auto horizon = agents.horizon();
  return !horizon || *next <= *horizon;
}

void Simulation::step() {
  is_stepping_ = true;
  engine.run_next_event();
  is_stepping_ = false;
  announce();
}

void Simulation::satisfy_waiters() {
  std::erase_if(waiters_, [this](Waiter* waiter) {
    if (!waiter->condition()) return false;
    Agents::Agent& agent = *agents.find(waiter->agent);
    agent.clock_ns = std::max(agent.clock_ns, engine.now());
    --agent.waiting;
    waiter->is_satisfied = true;
    waiter->entry = agent.entering.insert(agent.clock_ns);
    return true;
  });
}

void Simulation::call(Sleeper& sleeper) {
  sleeper.is_called = true;
  ++driving_threads_;
  ringing_.push_back(&sleeper.bell);
}

void Simulation::call_sleepers() {
  for (Sleeper* sleeper : sleepers_) {
    if (!sleeper->is_called && sleeper->is_ready()) call(*sleeper);
  }
  if (driving_threads_ > 0 || sleepers_.empty()) return;
  if (can_step()) {
    call(*sleepers_.front());
  } else if (engine.has_conditions() && poller_ == nullptr) {
    ringing_.push_back(&sleepers_.front()->bell);
  }
}

void Simulation::drive(Lock& lock, const std::function<bool()>& is_ready) {
  ++driving_threads_;
  announce();
  while (!is_ready()) {
    if (can_step()) {
      step();
    } else {
      sleep(lock, is_ready);
    }
  }
  --driving_threads_;
}

void Simulation::sleep(Lock& lock, const std::function<bool()>& is_ready) {
  using Clock = std::chrono::steady_clock;
  if (free_bells_.empty()) free_bells_.push_back(&bells_.emplace_back());
  std::condition_variable* const bell = free_bells_.back();
  free_bells_.pop_back();
  Sleeper self{is_ready, *bell};
  sleepers_.push_back(&self);
  --driving_threads_;
  std::uint64_t seen_progress = progress_count_;
  auto deadline = Clock::now() + std::chrono::seconds(stall_report_s_);
  while (!self.is_called) {
    if (!ringing_.empty()) {
      lock.release();
      lock.acquire();
      continue;
    }
    if (poller_ == nullptr) poller_ = &self;
    const bool polls = poller_ == &self;
    if (polls && !is_stepping_ && engine.poll_conditions()) {
      announce();
      continue;
    }
    bell->wait_until(lock.held(), polls ? std::min(Clock::now() + kPollInterval, deadline) : deadline);
    if (self.is_called || Clock::now() < deadline) continue;
    if (progress_count_ == seen_progress) report_stall();
    seen_progress = progress_count_;
    deadline = Clock::now() + std::chrono::seconds(stall_report_s_);
  }
  if (poller_ == &self) poller_ = nullptr;
  std::erase(sleepers_, &self);
  free_bells_.push_back(bell);
}

void Simulation::report_stall() {
  if (std::exchange(has_reported_stall_, true)) return;
  const std::string text =
      "simulated GPU: no progress for " + std::to_string(stall_report_s_) + " s of real time\n" + describe();
  if (on_stall_) {
    on_stall_(text);
  } else {
    std::fputs(text.c_str(), stderr);
  }
}

void Simulation::settle(Lock& lock, AgentId agent, TimeNs time_ns) {
  Agents::Agent& self = *agents.find(agent);
  const auto entry = self.entering.insert(time_ns);
  do {
    drive(lock, [&] { return !is_stepping_ && !has_event_until(time_ns) && agents.is_turn(agent, time_ns); });
    engine.pass_to(time_ns);
  } while (engine.poll_conditions());
  self.entering.erase(entry);
}

void Simulation::wait(Lock& lock, AgentId agent, std::function<bool()> condition) {
  Agents::Agent& self = *agents.find(agent);
  if (!condition()) {
    Waiter waiter{.agent = agent, .condition = std::move(condition)};
    waiters_.push_back(&waiter);
    ++self.waiting;
    drive(lock, [&] { return waiter.is_satisfied; });
    self.entering.erase(waiter.entry);
  }
  settle(lock, agent, self.clock_ns);
}

std::string Simulation::describe() const {
  std::string text = "virtual time " + std::to_string(engine.now()) + " ns\n";
  for (const auto& [id, agent] : agents.all()) {
    text += "agent " + agent.name + " at " + std::to_string(agent.clock_ns) + " ns: ";
    if (!agent.entering.empty()) {
      text += "waits for its turn to make a call";
    } else if (agent.waiting > 0) {
      text += "waits in a blocking call";
    } else {
      text += "is outside of the model and holds time";
    }
    text += "\n";
  }
  return text + engine.describe();
}

Call::Call(Simulation& simulation, TimeNs cost_ns, CallKind kind)
    : simulation_(&simulation),
      lock_(simulation),
      agent_(simulation.current_agent()),
      self_(simulation.agents.find(agent_)) {
  self_->clock_ns = std::max(self_->clock_ns, simulation.engine.now()) + cost_ns;
  // Adding an operation needs no settled state: it must not wait for guest code that another thread runs.
  if (kind == CallKind::kEnqueueOnly && agent_ == kGuest && simulation.is_stepping_) return;
  simulation.settle(lock_, agent_, self_->clock_ns);
}

void Call::spend_until(TimeNs time_ns) {
  self_->clock_ns = std::max(self_->clock_ns, time_ns);
  simulation_->settle(lock_, agent_, self_->clock_ns);
}

}  // namespace hmshim::simgpu::machine
