#include "tests/simgpu/model/thrashing.hpp"

#include <utility>

namespace hmshim::simgpu::machine {
namespace {

// uvm_perf_thrashing_threshold, _pin_threshold, _nap, _pin, _epoch (the last three in lapses), _max_resets
constexpr std::uint32_t kThreshold = 3;
constexpr std::uint32_t kPinThreshold = 10;
constexpr TimeNs kNapLapses = 1;
constexpr TimeNs kPinLapses = 300;
constexpr TimeNs kEpochLapses = 2000;
constexpr std::uint32_t kMostResets = 4;

}  // namespace

void Thrashing::migrated(Location to, TimeNs now_ns, TimeNs lapse_ns) {
  if (lapse_ns == 0 || pinned_ != kNowhere) return;
  const TimeNs before_ns = std::exchange(last_event_ns_, now_ns);
  const Location processor_before = std::exchange(last_processor_, to);
  const bool is_near = before_ns >= 0 && now_ns - before_ns <= lapse_ns;
  if (!is_tracked_ && (!is_near || processor_before == to)) return;
  is_tracked_ = true;
  if (!std::exchange(has_counted_, true)) return;
  if (is_near) {
    ++events_;
    if (events_ >= kThreshold) last_thrashing_ns_ = now_ns;
  } else if (events_ >= kThreshold) {
    events_ = 0;
    throttled_ = 0;
    throttle_end_ns_ = 0;
  }
}

bool Thrashing::ends_pin(TimeNs now_ns) {
  if (pinned_ == kNowhere || now_ns < pinned_until_ns_) return false;
  const std::uint32_t resets = resets_;
  reset();
  resets_ = resets;
  return true;
}

Thrashing::Hint Thrashing::on_fault(Location requester, Location preferred, TimeNs now_ns, TimeNs lapse_ns) {
  if (!is_tracked_ || events_ < kThreshold) return {};
  const bool is_over = now_ns - last_thrashing_ns_ > kEpochLapses * lapse_ns;
  if (is_over && pinned_ == kNowhere && resets_ < kMostResets) {
    const std::uint32_t resets = resets_ + 1;
    reset();
    resets_ = resets;
    return {};
  }
  if ((throttled_ & bit(requester)) != 0) {
    if (now_ns < throttle_end_ns_ && requester != not_throttled_)
      return {.answer = Answer::kThrottle, .until_ns = throttle_end_ns_};
    throttled_ &= ~bit(requester);
    if (throttled_ == 0) throttle_end_ns_ = 0;
  }
  if (now_ns - last_event_ns_ > lapse_ns && pinned_ == kNowhere) return {};

  if (now_ns > throttle_end_ns_) {
    throttle_end_ns_ = now_ns + kNapLapses * lapse_ns;
    not_throttled_ = not_throttled_ == requester ? kNowhere : requester;
  } else if (not_throttled_ == kNowhere) {
    not_throttled_ = requester;
  }
  Hint hint = decide(requester, preferred);
  if (hint.answer == Answer::kThrottle) {
    if (pinned_ == kNowhere) ++throttles_;
    throttled_ |= bit(requester);
    hint.until_ns = throttle_end_ns_;
  } else if (hint.answer == Answer::kPin) {
    if (pinned_ == kNowhere) {
      pinned_until_ns_ = now_ns + kPinLapses * lapse_ns;
      throttles_ = 0;
      throttled_ = 0;
    }
    pinned_ = hint.pinned;
  }
  return hint;
}

Thrashing::Hint Thrashing::decide(Location requester, Location preferred) const {
  const Hint throttle{.answer = Answer::kThrottle};
  const auto pin = [](Location at) { return Hint{.answer = Answer::kPin, .pinned = at}; };
  if (preferred == kHost) return pin(kHost);
  if (pinned_ != kNowhere) {
    if (requester == preferred && pinned_ == preferred) return pin(preferred);
    if (requester == not_throttled_) return pin(requester == preferred ? preferred : kHost);
    return requester != preferred && pinned_ == kHost ? pin(kHost) : throttle;
  }
  if (requester != not_throttled_) return throttle;
  return throttles_ >= kPinThreshold ? pin(requester) : Hint{};
}

}  // namespace hmshim::simgpu::machine
