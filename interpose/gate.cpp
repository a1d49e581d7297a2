#include "interpose/gate.hpp"

namespace hmshim::interpose {

constinit Gate detail::gate;

bool Gate::activate() noexcept {
  std::uint32_t armed = encode(GateState::Armed, false, Reason::none);
  return word_.compare_exchange_strong(armed, encode(GateState::Active, true, Reason::none), std::memory_order_acq_rel);
}

bool Gate::pass_through(Reason reason) noexcept {
  std::uint32_t seen = word();
  for (;;) {
    const auto state = static_cast<GateState>(seen & kStateMask);
    if (state != GateState::Armed && state != GateState::Active) return false;
    const std::uint32_t next = encode(GateState::PassThrough, state == GateState::Active, reason);
    if (word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel)) return true;
  }
}

void Gate::turn_off(Reason reason) noexcept {
  word_.store(encode(GateState::Off, false, reason), std::memory_order_release);
}

std::string_view to_string(GateState state) noexcept {
  switch (state) {
    case GateState::Armed:
      return "armed";
    case GateState::Active:
      return "active";
    case GateState::PassThrough:
      return "pass_through";
    case GateState::Off:
      return "off";
  }
  return "unknown";
}

std::string_view to_string(Reason reason) noexcept {
  switch (reason) {
    case Reason::none:
      return "none";
    case Reason::disabled:
      return "disabled";
    case Reason::forked_child:
      return "forked_child";
    case Reason::invalid_option:
      return "invalid_option";
    case Reason::driver_lacks_function:
      return "driver_lacks_function";
    case Reason::unsupported_device:
      return "unsupported_device";
    case Reason::internal_error:
      return "internal_error";
  }
  return "unknown";
}

}  // namespace hmshim::interpose
