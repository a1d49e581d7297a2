// What decides before there is a plan, and where the program leaves it. The planning itself looks further than one
// launch and has its own clock: pattern_recorder.hpp, planner.hpp and plan_follower.hpp, driven by the engine's owner.
#include <memory>

#include "policy/policy.hpp"

namespace hmshim::policy {

std::unique_ptr<Policy> make_on_demand();

std::unique_ptr<Policy> make_learned() { return make_on_demand(); }

}  // namespace hmshim::policy
