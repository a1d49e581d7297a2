#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "tests/simgpu/model/model.hpp"

namespace hmshim::simgpu::machine {

/// Who may hold virtual time, and whose turn it is. The guest is agent 0.
/// Guarded by the model's lock.
class Agents {
 public:
  struct Agent {
    std::string name;
    TimeNs clock_ns = 0;
    std::multiset<TimeNs> entering{};  ///< calls that wait for their turn, by the clock they are made at
    int waiting = 0;                   ///< threads in a blocking call of the model or in an external wait
    bool is_woken = false;
  };

  Agents() { agents_.emplace(kGuest, Agent{.name = "guest"}); }
  AgentId add(const std::string& name, TimeNs clock_ns);
  void remove(AgentId agent) { agents_.erase(agent); }
  /// nullptr: unknown.
  [[nodiscard]] Agent* find(AgentId agent);
  [[nodiscard]] const std::map<AgentId, Agent>& all() const { return agents_; }

  /// Events up to this time may happen: nobody can still act before it. nullopt: everybody waits.
  [[nodiscard]] std::optional<TimeNs> horizon() const;
  /// True when nobody else may act before a call that `agent` makes at `time_ns`.
  [[nodiscard]] bool is_turn(AgentId agent, TimeNs time_ns) const;

 private:
  std::map<AgentId, Agent> agents_;
  AgentId next_ = kGuest + 1;
};

}  // namespace hmshim::simgpu::machine
