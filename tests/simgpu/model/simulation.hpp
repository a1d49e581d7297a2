#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/simgpu/model/agents.hpp"
#include "tests/simgpu/model/engine.hpp"

namespace hmshim::simgpu::machine {

enum class CallKind { kImmediate, kEnqueueOnly };

/// The machine, its operations and its agents under one lock: whichever thread is inside the model, waiting or
/// entering, runs the next event when time may pass, and the others wait for it.
class Simulation {
 public:
  explicit Simulation(const Options& options);

  Machine machine;
  Engine engine;
  Agents agents;

  using Lock = std::unique_lock<std::mutex>;
  [[nodiscard]] Lock lock() const { return Lock(mutex_); }
  [[nodiscard]] static bool in_body();
  [[nodiscard]] AgentId current_agent() const;
  /// Makes the calling thread an agent of this simulation, or the guest again.
  void become(AgentId agent) const;
  /// The state changed by something other than an event: waiting threads look again.
  void announce();
  [[nodiscard]] std::string describe() const;

 private:
  friend class Call;
  /// A thread in a blocking call. Whoever makes its condition true settles its clock in the same breath.
  struct Waiter {
    AgentId agent;
    std::function<bool()> condition;
    bool is_satisfied = false;
  };

  void run_body(const Body& body);
  [[nodiscard]] bool has_event_until(TimeNs time_ns) const;
  [[nodiscard]] bool can_step() const;
  void step();
  void satisfy_waiters();
  /// Runs the simulation, or lets other threads run it, until `is_ready`.
  void drive(Lock& lock, const std::function<bool()>& is_ready);
  void sleep(Lock& lock);
  void report_stall();
  /// Lets everything happen that comes before a call of `agent` at `time_ns`.
  void settle(Lock& lock, AgentId agent, TimeNs time_ns);
  void wait(Lock& lock, AgentId agent, std::function<bool()> condition);

  mutable std::mutex mutex_;
  std::condition_variable progress_;
  std::uint64_t progress_count_ = 0;
  int sleeping_threads_ = 0;
  bool is_stepping_ = false;  ///< a thread is inside an event, possibly in guest code without the lock
  std::vector<Waiter*> waiters_;
  std::function<void(const std::string&)> on_stall_;
  int stall_report_s_;
  bool has_reported_stall_ = false;
};

/// One call of the model, from its entry to its end: lock, virtual cost, turn.
class Call {
 public:
  Call(Simulation& simulation, TimeNs cost_ns, CallKind kind = CallKind::kImmediate);
  ~Call() { simulation_->announce(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  [[nodiscard]] TimeNs now() const { return self_->clock_ns; }
  [[nodiscard]] Agents::Agent& self() { return *self_; }
  /// Blocks until the condition holds; others may make calls meanwhile.
  void wait(std::function<bool()> condition) { simulation_->wait(lock_, agent_, std::move(condition)); }
  /// The caller is busy until then; others may make calls meanwhile.
  void spend_until(TimeNs time_ns);

 private:
  Simulation* simulation_;
  Simulation::Lock lock_;
  AgentId agent_;
  Agents::Agent* self_;  ///< stays put: only the agent's own thread removes it
};

}  // namespace hmshim::simgpu::machine
