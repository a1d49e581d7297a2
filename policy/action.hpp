// What a policy asks for. The uvm layer carries actions out, in order, before the launch that caused them.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/vocabulary.hpp"

namespace hmshim::policy {

enum class ActionKind : std::uint8_t {
  Demote,    // prefetch the extent to the host: its device memory becomes the driver's first victim
  Prefetch,  // prefetch the extent to the device
  Discard,   // drop the contents of a retired extent; if it has a tenant again by then, nothing happens
};

struct Action {
  ActionKind kind;
  ExtentId extent;
};

using Actions = std::vector<Action>;

}  // namespace hmshim::policy
