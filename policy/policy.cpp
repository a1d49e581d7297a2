#include "policy/policy.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace hmshim::policy {

#define HMSHIM_POLICY(name, sentence) std::unique_ptr<Policy> make_##name();
#include "policy/policies.def"
#undef HMSHIM_POLICY

std::unique_ptr<Policy> make_policy(std::string_view name) {
#define HMSHIM_POLICY(policy, sentence) \
  if (name == #policy) return make_##policy();
#include "policy/policies.def"
#undef HMSHIM_POLICY
  std::string message = fmt::format("there is no policy '{}'; there is", name);
#define HMSHIM_POLICY(policy, sentence) message += "\n  " #policy ": " sentence;
#include "policy/policies.def"
#undef HMSHIM_POLICY
  throw std::invalid_argument(message);
}

}  // namespace hmshim::policy
