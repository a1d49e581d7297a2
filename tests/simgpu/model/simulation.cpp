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
  if (sleeping_threads_ > 0) progress_.notify_all();
}

void Simulation::run_body(const Body& body) {
  mutex_.unlock();
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
    return true;
  });
}

void Simulation::drive(Lock& lock, const std::function<bool()>& is_ready) {
  while (!is_ready()) {
    if (can_step()) {
      step();
    } else {
      sleep(lock);
    }
  }
}

void Simulation::sleep(Lock& lock) {
  const std::uint64_t before = progress_count_;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(stall_report_s_);
  ++sleeping_threads_;
  while (progress_count_ == before) {
    // The guest's CPU may store the awaited value without telling anybody.
    const bool polls = engine.has_conditions() && !is_stepping_;
    if (polls && engine.poll_conditions()) announce();
    if (progress_count_ != before) break;
    const auto wake_at = polls ? std::chrono::steady_clock::now() + kPollInterval : deadline;
    progress_.wait_until(lock, std::min(wake_at, deadline));
    if (progress_count_ == before && std::chrono::steady_clock::now() >= deadline) {
      report_stall();
      break;
    }
  }
  --sleeping_threads_;
  if (progress_count_ != before) has_reported_stall_ = false;
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
  announce();
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
    announce();
    drive(lock, [&] { return waiter.is_satisfied; });
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
      lock_(simulation.mutex_),
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
