#include "policy/schedule_executor.hpp"

#include <stdexcept>
#include <string>

namespace hmshim::policy {

namespace {

std::vector<bool> where_wanted(const PieceMap& map, const Schedule& schedule) {
  std::vector<bool> is_on_device(map.pieces().size());
  const LaunchIndex n = map.launches();
  for (LaunchIndex k = 0; k < n; ++k) {
    for (TouchIndex t = map.touch_begin(k); t < map.touch_end(k); ++t) {
      const PieceTouch& touch = map.touches()[t];
      if (k + touch.gap_ticks >= n) is_on_device[touch.piece] = schedule.is_away[t] == 0;
    }
  }
  return is_on_device;
}

}  // namespace

ScheduleExecutor::ScheduleExecutor(const PieceMap& map, const Schedule& schedule, const CostModel& cost,
                                   std::uint64_t capacity_bytes)
    : ScheduleExecutor(map, schedule, cost, capacity_bytes, where_wanted(map, schedule)) {}

ScheduleExecutor::ScheduleExecutor(const PieceMap& map, const Schedule& schedule, const CostModel& cost,
                                   std::uint64_t capacity_bytes, const std::vector<bool>& is_on_device,
                                   LaunchIndex first)
    : map_(map),
      schedule_(schedule),
      cost_(cost),
      capacity_bytes_(capacity_bytes),
      death_bytes_(map.launches(), 0),
      before_(map.touches().size()),
      states_(map.pieces().size()),
      projection_(schedule.base_bytes),
      tick_(first) {
  const LaunchIndex largest = map.largest_launch();
  if (map.touched_bytes(largest) > capacity_bytes) {
    throw std::invalid_argument("launch " + std::to_string(largest) + " touches " +
                                std::to_string(map.touched_bytes(largest)) + " bytes, more than the capacity of " +
                                std::to_string(capacity_bytes));
  }
  const LaunchIndex n = map.launches();
  std::vector<std::pair<TouchIndex, Tick>> last(map.pieces().size());
  for (Tick tick = 0; tick < Tick{2} * n; ++tick) {  // the second round knows what came before the iteration's start
    const LaunchIndex k = index(tick);
    for (TouchIndex t = map.touch_begin(k); t < map.touch_end(k); ++t) {
      const PieceTouch& touch = map.touches()[t];
      auto& [touch_before, tick_before] = last[touch.piece];
      before_[t] = {touch_before, static_cast<std::uint32_t>(tick - tick_before)};
      touch_before = t;
      tick_before = tick;
      if (tick < n && touch.gap_ticks == 0) death_bytes_[k] += bytes(touch.piece);
    }
  }
  for (LaunchIndex k = 0; k < n; ++k) {
    // Where the gap after this touch ends, if that is at `first` or later: launches from `first` on are the round
    // before's.
    const Tick round_ago = k < first ? 0 : n;
    for (TouchIndex t = map.touch_begin(k); t < map.touch_end(k); ++t) {
      const PieceTouch& touch = map.touches()[t];
      if (k + touch.gap_ticks < first + round_ago) continue;
      State& state = states_[touch.piece];
      state.next_tick = k + touch.gap_ticks - round_ago;
      if (is_on_device[touch.piece]) {
        state.place = Place::Device;
        used_bytes_ += bytes(touch.piece);
        if (schedule.is_away[t] != 0) depart(touch.piece);
      } else {
        state.place = Place::Host;
        absent_.emplace(state.next_tick, touch.piece);
        if (schedule.is_away[t] == 0) project(touch.piece, -1);
      }
    }
  }
  await(first);
}

// A launch of the past says what it frees at its end; of those to come only the deaths are certain.
std::uint64_t ScheduleExecutor::growth_bytes(Tick end) const noexcept {
  std::int64_t growth = -static_cast<std::int64_t>(freed_at_end_bytes_), most = 0;
  for (Tick tick = tick_ + 1; tick < end; ++tick) {
    growth += static_cast<std::int64_t>(map_.birth_bytes(index(tick)));
    most = std::max(most, growth);
    growth -= static_cast<std::int64_t>(death_bytes_[index(tick)]);
  }
  return static_cast<std::uint64_t>(most);
}

bool ScheduleExecutor::promise_next() {
  const Tick next = promised();
  if (!is_running_ || next > tick_ + map_.launches() - 1) return false;
  if (used_bytes_ + growth_bytes(next + 1) > capacity_bytes_) return false;
  const LaunchIndex k = index(next);
  for (TouchIndex t = map_.touch_begin(k); t < map_.touch_end(k); ++t) {
    const PieceTouch& touch = map_.touches()[t];
    if (touch.is_birth) continue;
    const auto [touch_before, ticks_ago] = before_[t];
    const bool is_touched_first = next >= tick_ + ticks_ago;  // by the running launch or one promised before
    const bool stays =
        is_touched_first ? schedule_.is_away[touch_before] == 0 : states_[touch.piece].place == Place::Device;
    if (!stays) return false;
  }
  promised_ = next + 1;
  return true;
}

bool ScheduleExecutor::can_launch() const noexcept {
  return !is_running_ && missing_pieces_ == 0 && used_bytes_ + map_.birth_bytes(index(tick_)) <= capacity_bytes_;
}

void ScheduleExecutor::launch_started() {
  const LaunchIndex k = index(tick_);
  // What is late to leave now will be as late in the next iteration, whose projection this leaf becomes.
  projection_.set(tick_, schedule_.base_bytes[k] + departing_bytes_);
  is_running_ = true;
  freed_at_end_bytes_ = 0;
  for (TouchIndex t = map_.touch_begin(k); t < map_.touch_end(k); ++t) {
    const PieceTouch& touch = map_.touches()[t];
    State& state = states_[touch.piece];
    if (touch.is_birth) {
      used_bytes_ += bytes(touch.piece);
      state.has_host_copy = cost_.clean_copies;  // what is born by a read was put there by the host
      state.place = Place::Device;
    }
    if (touch.is_written) {
      state.has_host_copy = false;
      spoil_copy(touch.piece);
    }
    const bool dies = touch.gap_ticks == 0;
    if (dies || (schedule_.is_away[t] != 0 && state.has_host_copy)) freed_at_end_bytes_ += bytes(touch.piece);
  }
}

void ScheduleExecutor::launch_finished() {
  const LaunchIndex k = index(tick_);
  is_running_ = false;
  for (TouchIndex t = map_.touch_begin(k); t < map_.touch_end(k); ++t) {
    const PieceTouch& touch = map_.touches()[t];
    State& state = states_[touch.piece];
    if (touch.gap_ticks == 0) {
      state.place = Place::Unborn;
      used_bytes_ -= bytes(touch.piece);
      spoil_copy(touch.piece);
      continue;
    }
    state.next_tick = tick_ + touch.gap_ticks;
    if (schedule_.is_away[t] != 0) {
      depart(touch.piece);
    } else if (schedule_.preclean_ticks[t] > 0) {
      precleaning_.emplace(tick_ + schedule_.preclean_ticks[t], touch.piece);
    }
  }
  while (!precleaning_.empty() && precleaning_.top().first <= tick_) precleaning_.pop();  // too late for these
  await(tick_ + 1);
}

// Makes `tick` the waiting launch.
void ScheduleExecutor::await(Tick tick) {
  tick_ = tick;
  missing_pieces_ = 0;
  missing_bytes_ = 0;
  const LaunchIndex k = index(tick);
  for (TouchIndex t = map_.touch_begin(k); t < map_.touch_end(k); ++t) {
    const PieceTouch& touch = map_.touches()[t];
    State& state = states_[touch.piece];
    if (touch.is_birth || state.place == Place::Device) continue;
    if (state.place == Place::Departing) {  // too late to leave
      state.place = Place::Device;
      departing_bytes_ -= bytes(touch.piece);
      continue;
    }
    ++missing_pieces_;
    if (state.place == Place::Host) missing_bytes_ += bytes(touch.piece);
  }
  relieve();
}

// What no early fetch may take, although it is free: for the waiting launch, or for the one after the running one.
std::uint64_t ScheduleExecutor::reserved_bytes() const noexcept {
  if (!is_running_) return missing_bytes_ + map_.birth_bytes(index(tick_));
  return growth_bytes(std::max(promised_, tick_ + 2));
}

bool ScheduleExecutor::is_short() const noexcept {
  return !is_running_ && used_bytes_ + reserved_bytes() > capacity_bytes_;
}

// A launch that waits for more memory than is leaving already sends away what is needed last.
void ScheduleExecutor::relieve() {
  while (is_short() && used_bytes_ + reserved_bytes() > capacity_bytes_ + departing_bytes_) {
    PieceIndex victim = 0;
    Tick furthest = tick_;
    for (PieceIndex piece = 0; piece < states_.size(); ++piece) {
      if (states_[piece].place == Place::Device && states_[piece].next_tick > furthest) {
        victim = piece;
        furthest = states_[piece].next_tick;
      }
    }
    if (furthest == tick_) return;  // the rest is arriving and can go when it is here
    ++emergencies_;
    project(victim, -1);
    depart(victim);
  }
}

void ScheduleExecutor::occupy(std::uint64_t bytes) {
  used_bytes_ += bytes;
  departing_bytes_ += bytes;
}

void ScheduleExecutor::vacate(std::uint64_t bytes) {
  used_bytes_ -= bytes;
  departing_bytes_ -= bytes;
}

std::vector<ScheduleExecutor::Writing>::iterator ScheduleExecutor::find_writing(PieceIndex piece) {
  return std::find_if(writing_.begin(), writing_.end(), [piece](const Writing& each) { return each.piece == piece; });
}

void ScheduleExecutor::spoil_copy(PieceIndex piece) {
  if (const auto writing = find_writing(piece); writing != writing_.end()) writing->is_valid = false;
}

void ScheduleExecutor::project(PieceIndex piece, std::int64_t sign) {
  projection_.add(next_to_start(), states_[piece].next_tick, sign * static_cast<std::int64_t>(bytes(piece)));
}

void ScheduleExecutor::depart(PieceIndex piece) {
  if (states_[piece].has_host_copy) return drop(piece);
  states_[piece].place = Place::Departing;
  departing_bytes_ += bytes(piece);
  departing_.push_back(piece);
}

void ScheduleExecutor::keep(PieceIndex piece) {
  states_[piece].place = Place::Device;
  departing_bytes_ -= bytes(piece);
  project(piece, +1);
}

void ScheduleExecutor::drop(PieceIndex piece) {
  states_[piece].place = Place::Host;
  used_bytes_ -= bytes(piece);
  drops_.push_back(piece);
  absent_.emplace(states_[piece].next_tick, piece);
}

bool ScheduleExecutor::may_fetch(PieceIndex piece) const {
  const std::uint64_t used_bytes = used_bytes_ + bytes(piece);
  if (is_awaited(piece)) return used_bytes <= capacity_bytes_;
  if (used_bytes + reserved_bytes() > capacity_bytes_) return false;
  const std::int64_t projected = projection_.max(next_to_start(), states_[piece].next_tick);
  return projected + static_cast<std::int64_t>(bytes(piece)) <= static_cast<std::int64_t>(capacity_bytes_);
}

std::optional<PieceIndex> ScheduleExecutor::start_fetch(Tick horizon) {
  while (!absent_.empty()) {
    const auto [next_tick, piece] = absent_.top();
    if (next_tick >= horizon) return std::nullopt;
    State& state = states_[piece];
    const bool is_stale = state.place != Place::Host || state.next_tick != next_tick;
    if (!is_stale && !may_fetch(piece)) return std::nullopt;
    absent_.pop();
    if (is_stale) continue;
    state.place = Place::Arriving;
    used_bytes_ += bytes(piece);
    if (is_awaited(piece)) missing_bytes_ -= bytes(piece);
    project(piece, +1);
    return fetching_ = piece;
  }
  return std::nullopt;
}

void ScheduleExecutor::fetch_finished() {
  const PieceIndex piece = *std::exchange(fetching_, std::nullopt);
  states_[piece].place = Place::Device;
  states_[piece].has_host_copy = cost_.clean_copies;
  if (is_awaited(piece)) --missing_pieces_;
  relieve();
}

// Not if its next touch comes before it could be back, unless a launch waits for the memory.
bool ScheduleExecutor::is_worth_leaving(PieceIndex piece) const {
  const std::uint64_t round_trip_ns =
      cost_.transfer_ns(Direction::ToHost, bytes(piece)) + cost_.transfer_ns(Direction::ToDevice, bytes(piece));
  return is_short() || map_.compute_ns(tick_, states_[piece].next_tick) >= round_trip_ns;
}

std::optional<PieceIndex> ScheduleExecutor::start_writeback() {
  const auto start = [this](PieceIndex piece) {
    writing_.push_back({piece});
    return piece;
  };
  while (!departing_.empty()) {
    const PieceIndex piece = departing_.front();
    departing_.pop_front();
    State& state = states_[piece];
    // One that is being pre-cleaned leaves with that copy, or asks again.
    if (state.place != Place::Departing || find_writing(piece) != writing_.end()) continue;
    if (is_worth_leaving(piece)) {
      state.place = Place::Leaving;
      return start(piece);
    }
    keep(piece);
  }
  while (!precleaning_.empty()) {
    const PieceIndex piece = precleaning_.top().second;
    precleaning_.pop();
    const bool is_clean = states_[piece].has_host_copy || find_writing(piece) != writing_.end();
    if (states_[piece].place == Place::Device && !is_clean) return start(piece);
  }
  return std::nullopt;
}

bool ScheduleExecutor::writeback_finished(PieceIndex piece) {
  const auto writing = find_writing(piece);
  State& state = states_[piece];
  if (writing->is_valid) state.has_host_copy = cost_.clean_copies;
  writing_.erase(writing);
  // A piece that was queued to leave during its pre-clean copy can go as well.
  const bool is_leaving = state.place == Place::Leaving || (state.place == Place::Departing && state.has_host_copy);
  if (!is_leaving) {
    if (state.place == Place::Departing) departing_.push_back(piece);
    return false;
  }
  // Without clean copies it has moved, wanted or not.
  const bool leaves = !cost_.clean_copies || !is_awaited(piece);
  if (leaves) {
    state.place = Place::Host;
    departing_bytes_ -= bytes(piece);
    used_bytes_ -= bytes(piece);
    if (is_awaited(piece)) missing_bytes_ += bytes(piece);
    absent_.emplace(state.next_tick, piece);
  } else {
    keep(piece);
    --missing_pieces_;
  }
  relieve();
  return leaves;
}

}  // namespace hmshim::policy
