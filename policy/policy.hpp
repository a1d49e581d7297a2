// What an algorithm must do to be a policy. One algorithm, one file in policies/, one row in policies.def.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "policy/action.hpp"
#include "policy/event.hpp"
#include "policy/extents.hpp"
#include "policy/iteration_detector.hpp"

namespace hmshim::policy {

// The launch about to run, as the engine sees it. Its extents already carry touched_at == ordinal, and those on the
// device are the most recently touched.
struct Demand {
  const Launch& launch;
  std::uint64_t ordinal;         // this launch in the engine's own count
  std::uint64_t incoming_bytes;  // of its extents that are not on the device
  std::uint64_t budget_bytes;
  bool is_copy;
  bool can_discard;                     // retired extents may be discarded
  const IterationDetector& iterations;  // has observed the launch, unless it is a copy
};

class Policy {
 public:
  virtual ~Policy() = default;

  // Appends what must be done before the launch runs. Nothing has happened yet when this returns: the engine applies
  // the actions to `extents`, then counts the launch's own extents as brought in. Called at every launch, so it must be
  // cheap when there is nothing to do.
  virtual void before_launch(const Extents& extents, const Demand& demand, Actions& actions) = 0;

  // True for a policy that acts for launches to come: it must be asked before every launch, whether data is missing or
  // not, and its actions are carried out beside the program, which waits only for what the launch at hand needs.
  [[nodiscard]] virtual bool looks_ahead() const noexcept { return false; }
};

// Throws std::invalid_argument, naming the policies there are, when none has this name.
[[nodiscard]] std::unique_ptr<Policy> make_policy(std::string_view name);

}  // namespace hmshim::policy
