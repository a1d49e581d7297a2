#include "tests/simgpu/model/agents.hpp"

#include <algorithm>
#include <utility>

namespace hmshim::simgpu::machine {

AgentId Agents::add(const std::string& name, TimeNs clock_ns) {
  agents_.emplace(next_, Agent{.name = name, .clock_ns = clock_ns});
  return next_++;
}

Agents::Agent* Agents::find(AgentId agent) {
  const auto it = agents_.find(agent);
  return it == agents_.end() ? nullptr : &it->second;
}

std::optional<TimeNs> Agents::horizon() const {
  std::optional<TimeNs> horizon;
  const auto hold = [&](TimeNs time_ns) { horizon = std::min(horizon.value_or(time_ns), time_ns); };
  for (const auto& [id, agent] : agents_) {
    if (!agent.entering.empty()) {
      hold(*agent.entering.begin());
    } else if (agent.waiting == 0) {
      hold(agent.clock_ns);
    }
  }
  return horizon;
}

bool Agents::is_turn(AgentId agent, TimeNs time_ns) const {
  return std::all_of(agents_.begin(), agents_.end(), [&](const auto& entry) {
    const auto& [id, other] = entry;
    if (id == agent) return true;
    if (!other.entering.empty()) return std::pair(*other.entering.begin(), id) > std::pair(time_ns, agent);
    // Outside of the model: what it does there comes at its clock, and its next call later.
    return other.waiting > 0 || std::pair(other.clock_ns, id) > std::pair(time_ns, agent);
  });
}

}  // namespace hmshim::simgpu::machine
