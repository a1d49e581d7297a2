#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
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

  /// The model's lock. Whoever was called meanwhile is woken once it is free: waking earlier costs two more switches.
  class Lock {
   public:
    explicit Lock(const Simulation& simulation) : simulation_(simulation), held_(simulation.mutex_) {}
    ~Lock() { release(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    void release();
    void acquire() { held_ = std::unique_lock(simulation_.mutex_); }
    std::unique_lock<std::mutex>& held() { return held_; }

   private:
    const Simulation& simulation_;
    std::unique_lock<std::mutex> held_;
  };
  [[nodiscard]] Lock lock() const { return Lock(*this); }
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
    std::multiset<TimeNs>::iterator entry{};  ///< holds time from then on until its thread goes on
  };
  /// A thread that cannot go on. Each is woken by itself: waking all for one that can go on costs more than what they
  /// do (five threads take part in a planned iteration).
  struct Sleeper {
    const std::function<bool()>& is_ready;
    std::condition_variable& bell;
    bool is_called = false;
  };

  void unlock(std::mutex& held) const;
  void run_body(const Body& body);
  [[nodiscard]] bool has_event_until(TimeNs time_ns) const;
  [[nodiscard]] bool can_step() const;
  void step();
  void satisfy_waiters();
  /// Wakes whoever can go on; somebody to run the next event, if nobody else will; and somebody to poll.
  void call_sleepers();
  void call(Sleeper& sleeper);
  /// Runs the simulation, or lets other threads run it, until `is_ready`.
  void drive(Lock& lock, const std::function<bool()>& is_ready);
  void sleep(Lock& lock, const std::function<bool()>& is_ready);
  void report_stall();
  /// Lets everything happen that comes before a call of `agent` at `time_ns`.
  void settle(Lock& lock, AgentId agent, TimeNs time_ns);
  void wait(Lock& lock, AgentId agent, std::function<bool()> condition);

  mutable std::mutex mutex_;
  mutable std::vector<std::condition_variable*> ringing_;  ///< to be notified when the lock is free
  std::deque<std::condition_variable> bells_;              ///< never destroyed before the simulation
  std::vector<std::condition_variable*> free_bells_;
  std::uint64_t progress_count_ = 0;
  std::vector<Sleeper*> sleepers_;
  int driving_threads_ = 0;          ///< inside drive(), and not asleep or called
  const Sleeper* poller_ = nullptr;  ///< looks for values that the guest's CPU stores without telling anybody
  bool is_stepping_ = false;         ///< a thread is inside an event, possibly in guest code without the lock
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
