#include "policy/planner_select.hpp"

#include <queue>
#include <utility>

namespace hmshim::policy {
namespace {

// Contents of the device at the end of an iteration hardly change from the third on.
constexpr Tick kIterations = 3;
constexpr Tick kNever = ~Tick{0};

class Sweep {
 public:
  Sweep(const PieceMap& map, const CostModel& cost, std::uint64_t capacity_bytes, const Selection& selection)
      : map_(map),
        cost_(cost),
        limit_bytes_(static_cast<std::uint64_t>(static_cast<double>(capacity_bytes) * (1 - selection.margin))),
        clean_weight_(selection.clean_weight),
        states_(map.pieces().size()),
        is_away_(map.touches().size(), 0) {}

  std::vector<std::uint8_t> run() {
    for (tick_ = 0; tick_ < kIterations * map_.launches(); ++tick_) {
      const auto k = static_cast<LaunchIndex>(tick_ % map_.launches());
      for (TouchIndex t = map_.touch_begin(k); t < map_.touch_end(k); ++t) bring(t);
      while (used_bytes_ > limit_bytes_ && evict()) {
      }
      for (TouchIndex t = map_.touch_begin(k); t < map_.touch_end(k); ++t) release(t);
    }
    return std::move(is_away_);
  }

 private:
  struct State {
    bool is_resident = false;
    bool has_host_copy = false;
    TouchIndex touch = 0;  // the last one
    Tick next_tick = kNever;
  };
  // Candidates, the furthest next touch first. Entries go stale and are skipped.
  using Candidates = std::priority_queue<std::pair<Tick, PieceIndex>>;

  // A gap is judged at its end: one that goes round the iteration's end may begin in the last one swept.
  void bring(TouchIndex t) {
    const PieceTouch& touch = map_.touches()[t];
    State& state = states_[touch.piece];
    if (state.next_tick == tick_) is_away_[state.touch] = state.is_resident ? 0 : 1;
    if (!state.is_resident) used_bytes_ += map_.pieces()[touch.piece].bytes;
    state.is_resident = true;
    if (touch.is_written) {
      state.has_host_copy = false;
    } else if (touch.is_birth) {
      state.has_host_copy = true;
    }
    state.touch = t;
    state.next_tick = touch.gap_ticks == 0 ? kNever : tick_ + touch.gap_ticks;
  }

  void release(TouchIndex t) {
    const PieceTouch& touch = map_.touches()[t];
    State& state = states_[touch.piece];
    if (touch.gap_ticks == 0) {
      state.is_resident = false;
      used_bytes_ -= map_.pieces()[touch.piece].bytes;
    } else if (touch.gap_ticks > 1) {
      // A weight is written once and read long after: there was time to clean it.
      const bool is_cleanable = map_.pieces()[touch.piece].is_persistent && !touch.is_written;
      const bool is_free = cost_.clean_copies && (state.has_host_copy || is_cleanable);
      (is_free ? clean_ : dirty_).emplace(state.next_tick, touch.piece);
    }
  }

  // Launches from now to the best candidate's next touch; 0 if there is none worth moving, that is none beyond the
  // next launch.
  std::uint64_t distance(Candidates& candidates) const {
    while (!candidates.empty()) {
      const auto [next_tick, piece] = candidates.top();
      if (states_[piece].is_resident && states_[piece].next_tick == next_tick) {
        return next_tick > tick_ + 1 ? next_tick - tick_ : 0;
      }
      candidates.pop();
    }
    return 0;
  }

  bool evict() {
    const std::uint64_t clean_ticks = distance(clean_), dirty_ticks = distance(dirty_);
    if (clean_ticks == 0 && dirty_ticks == 0) return false;
    const bool takes_clean =
        clean_ticks > 0 && static_cast<double>(clean_ticks) >= clean_weight_ * static_cast<double>(dirty_ticks);
    Candidates& candidates = takes_clean ? clean_ : dirty_;
    State& state = states_[candidates.top().second];
    used_bytes_ -= map_.pieces()[candidates.top().second].bytes;
    candidates.pop();
    state.is_resident = false;
    state.has_host_copy = true;
    return true;
  }

  const PieceMap& map_;
  const CostModel& cost_;
  std::uint64_t limit_bytes_;
  double clean_weight_;
  std::vector<State> states_;
  std::vector<std::uint8_t> is_away_;
  Candidates clean_, dirty_;
  std::uint64_t used_bytes_ = 0;
  Tick tick_ = 0;
};

std::vector<std::uint64_t> base_bytes(const PieceMap& map, const std::vector<std::uint8_t>& is_away) {
  const LaunchIndex n = map.launches();
  std::vector<std::int64_t> change(n + 1, 0);  // of the bytes that are away
  for (LaunchIndex k = 0; k < n; ++k) {
    for (TouchIndex t = map.touch_begin(k); t < map.touch_end(k); ++t) {
      if (is_away[t] == 0) continue;
      const PieceTouch& touch = map.touches()[t];
      const auto bytes = static_cast<std::int64_t>(map.pieces()[touch.piece].bytes);
      const LaunchIndex end = k + touch.gap_ticks;
      change[k + 1] += bytes;
      if (end > n) change[0] += bytes;
      change[end > n ? end - n : end] -= bytes;
    }
  }
  std::vector<std::uint64_t> base(n);
  std::int64_t away = 0;
  for (LaunchIndex k = 0; k < n; ++k) {
    away += change[k];
    base[k] = map.live_bytes(k) - static_cast<std::uint64_t>(away);
  }
  return base;
}

std::vector<std::uint32_t> preclean_ticks(const PieceMap& map, const std::vector<std::uint8_t>& is_away) {
  const LaunchIndex n = map.launches();
  std::vector<std::uint32_t> ticks(map.touches().size(), 0);
  std::vector<Tick> leaves(map.pieces().size(), 0);  // the start of the away gap that comes before the next write
  // Backwards; the first of the two rounds finds what the end of the iteration looks forward to.
  for (Tick tick = Tick{2} * n; tick-- > 0;) {
    const auto k = static_cast<LaunchIndex>(tick % n);
    for (TouchIndex t = map.touch_begin(k); t < map.touch_end(k); ++t) {
      const PieceTouch& touch = map.touches()[t];
      Tick& leave = leaves[touch.piece];
      if (touch.gap_ticks == 0) leave = 0;
      if (is_away[t] != 0) leave = tick;
      if (!touch.is_written) continue;
      ticks[t] = leave > tick ? static_cast<std::uint32_t>(leave - tick) : 0;
      leave = 0;
    }
  }
  return ticks;
}

}  // namespace

Schedule select_gaps(const PieceMap& map, const CostModel& cost, std::uint64_t capacity_bytes,
                     const Selection& selection) {
  Schedule schedule;
  schedule.is_away = Sweep(map, cost, capacity_bytes, selection).run();
  derive_schedule(map, cost, schedule);
  return schedule;
}

void derive_schedule(const PieceMap& map, const CostModel& cost, Schedule& schedule) {
  schedule.base_bytes = base_bytes(map, schedule.is_away);
  if (cost.clean_copies) {
    schedule.preclean_ticks = preclean_ticks(map, schedule.is_away);
  } else {
    schedule.preclean_ticks.assign(map.touches().size(), 0);
  }
}

}  // namespace hmshim::policy
