// Whether hmshim acts. One word, read once per wrapped call:
//
//   Armed ── activate() ──> Active ── pass_through(reason) ──> PassThrough
//     └──────────────────── pass_through(reason) ────────────────^
//   any ── turn_off(reason) ──> Off
//
// Armed        loaded; cuInit has not succeeded yet. Only cuInit's handler runs.
// Active       everything works.
// PassThrough  no new actions for the rest of the process. After Active the handlers go on for what hmshim already owns
// (frees,
//              queries); before Active nothing is owned and they do not run.
// Off          the user asked for it, or this is a forked child: every wrapper is a plain call of the driver.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace hmshim::interpose {

enum class GateState : std::uint8_t { Armed, Active, PassThrough, Off };

// Why the gate is not, or no longer, Active.
enum class Reason : std::uint8_t {
  none,
  disabled,               // HMSHIM_DISABLE
  forked_child,           // CUDA itself does not work in a child forked after cuInit
  invalid_option,         // an HMSHIM_* variable has a value that cannot be right
  driver_lacks_function,  // a required row of hooks.def is absent
  unsupported_device,     // no concurrent managed access, or memory that is one with the host's
  internal_error,         // an exception of hmshim's own reached a wrapper
};

[[nodiscard]] std::string_view to_string(GateState state) noexcept;
[[nodiscard]] std::string_view to_string(Reason reason) noexcept;

class Gate {
 public:
  [[nodiscard]] bool runs_handlers() const noexcept { return (word() & kHandlers) != 0; }
  [[nodiscard]] bool is_armed() const noexcept { return state() == GateState::Armed; }
  [[nodiscard]] bool is_active() const noexcept { return state() == GateState::Active; }
  [[nodiscard]] GateState state() const noexcept { return static_cast<GateState>(word() & kStateMask); }
  [[nodiscard]] Reason reason() const noexcept { return static_cast<Reason>(word() >> kReasonShift); }

  // Armed → Active. False, and no change, in any other state.
  bool activate() noexcept;
  // Armed or Active → PassThrough. False, and no change, in any other state: the first reason stays.
  bool pass_through(Reason reason) noexcept;
  // Any state → Off. Async-signal-safe: called in a forked child.
  void turn_off(Reason reason) noexcept;

 private:
  static constexpr std::uint32_t kStateMask = 0x3;
  static constexpr std::uint32_t kHandlers = 0x4;
  static constexpr std::uint32_t kReasonShift = 8;

  [[nodiscard]] static constexpr std::uint32_t encode(GateState state, bool handlers, Reason reason) noexcept {
    return static_cast<std::uint32_t>(state) | (handlers ? kHandlers : 0) |
           static_cast<std::uint32_t>(reason) << kReasonShift;
  }
  [[nodiscard]] std::uint32_t word() const noexcept { return word_.load(std::memory_order_acquire); }

  std::atomic<std::uint32_t> word_{encode(GateState::Armed, false, Reason::none)};
};

namespace detail {
// Constant-initialised: wrappers may be called before any constructor has run.
extern constinit Gate gate;
}  // namespace detail

[[nodiscard]] inline Gate& gate() noexcept { return detail::gate; }

}  // namespace hmshim::interpose
