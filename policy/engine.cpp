#include "policy/engine.hpp"

#include <algorithm>
#include <utility>

#include "policy/extents.hpp"
#include "policy/policy.hpp"

namespace hmshim::policy {
namespace {

MigrationTotals operator-(const MigrationTotals& a, const MigrationTotals& b) noexcept {
  return {.h2d_demand_bytes = a.h2d_demand_bytes - b.h2d_demand_bytes,
          .h2d_prefetch_bytes = a.h2d_prefetch_bytes - b.h2d_prefetch_bytes,
          .d2h_demote_bytes = a.d2h_demote_bytes - b.d2h_demote_bytes,
          .discarded_bytes = a.discarded_bytes - b.discarded_bytes,
          .demotions = a.demotions - b.demotions,
          .budget_excursions = a.budget_excursions - b.budget_excursions};
}

}  // namespace

struct Engine::State {
  explicit State(const EngineConfig& config)
      : policy(make_policy(config.policy)), budget_bytes(config.budget_bytes), can_discard(config.can_discard) {}

  enum class Arrival : std::uint8_t { ByFault, ByPrefetch };

  struct Bytes {
    std::uint64_t own = 0;       // of the extents that the launch touches
    std::uint64_t incoming = 0;  // of those that are not on the device
  };
  Bytes touch(const Launch& event, bool is_launch);
  void run(const Launch& event, Arrival arrival, Actions& actions);
  void apply(const Action& action);
  void forget_working_set(ExtentId id);
  void end_life(ExtentId id) noexcept { lifetimes.ended(id, launches, iterations.period_launches()); }
  void discard(ExtentId retired, Actions& actions);
  void discard_retired_on_host(Actions& actions);
  void discard_retired(std::uint64_t incoming_bytes, Actions& actions);
  void demote_oldest(ExtentId oldest, std::uint64_t incoming_bytes, Actions& actions);
  void account(const Launch& event, std::uint64_t own_bytes, bool is_launch);

  std::unique_ptr<Policy> policy;
  std::uint64_t budget_bytes;
  const bool can_discard;
  Lifetimes lifetimes;
  std::vector<ExtentId> retired_on_host;  // since the last launch
  Extents extents;
  MigrationTotals totals;
  IterationDetector iterations;
  std::uint64_t launches = 0;

  IterationStats current;           // `migrated` is filled in when it is handed out
  MigrationTotals totals_at_begin;  // of the current iteration
  std::uint64_t working_set_alive_bytes = 0;
  std::optional<IterationStats> completed;
};

Engine::Engine(const EngineConfig& config) : state_(std::make_unique<State>(config)) {}
Engine::~Engine() = default;

void Engine::allocated(const Allocated& event) {
  freed({event.extent});  // an id that comes again is free, even when its Freed was lost
  state_->extents.add(event.extent, event.bytes, state_->launches);
  state_->lifetimes.began(event.extent, event.bytes, state_->launches);
}

void Engine::freed(const Freed& event) {
  state_->forget_working_set(event.extent);
  state_->end_life(event.extent);
  state_->extents.remove(event.extent);
}

void Engine::State::forget_working_set(ExtentId id) {
  if (extents.contains(id) && extents[id].iteration == current.ordinal + 1)
    working_set_alive_bytes -= extents[id].bytes;
}

void Engine::retired(const Freed& event) {
  Extents& extents = state_->extents;
  if (!extents.contains(event.extent)) return;
  state_->forget_working_set(event.extent);
  state_->end_life(event.extent);
  extents.retire(event.extent);
  if (state_->can_discard && extents[event.extent].place == Place::Host)
    state_->retired_on_host.push_back(event.extent);
}

void Engine::revived(const Allocated& event) {
  if (!state_->extents.is_retired(event.extent)) return allocated(event);
  state_->extents.revive(event.extent, state_->launches);
  state_->lifetimes.began(event.extent, event.bytes, state_->launches);
}

void Engine::reshaped(std::span<const ExtentId> before, std::span<const Allocated> after) {
  Extents& extents = state_->extents;
  std::optional<Place> place;
  bool is_mixed = false;
  for (const ExtentId id : before) {
    if (!extents.is_retired(id)) continue;
    is_mixed |= extents[id].is_mixed || place.value_or(extents[id].place) != extents[id].place;
    place = is_mixed ? Place::Host : extents[id].place;
    extents.remove(id);
  }
  for (const Allocated& each : after) {
    freed({each.extent});
    extents.add_retired(each.extent, each.bytes, place.value_or(Place::Host));
    // Of mixed memory nothing is counted as resident, so what of it is on the device has to leave.
    if (!is_mixed) continue;
    extents.mark_mixed(each.extent);
    state_->retired_on_host.push_back(each.extent);
  }
}

void Engine::populate(ExtentId extent, Actions& actions) {
  State& state = *state_;
  if (!state.extents.contains(extent)) return;
  // Its owner knows better than these books, which may have it on the device: the discard may have been decided for an
  // extent that had the id before.
  const bool is_believed_there = state.extents[extent].place == Place::Device;
  const std::uint64_t incoming_bytes = is_believed_there ? 0 : state.extents[extent].bytes;
  state.discard_retired(incoming_bytes, actions);
  state.demote_oldest(state.extents.least_recently_touched(), incoming_bytes, actions);
  actions.push_back({ActionKind::Prefetch, extent});
  state.apply(actions.back());
}

void Engine::State::discard(ExtentId retired, Actions& actions) {
  actions.push_back({ActionKind::Discard, retired});
  apply(actions.back());
}

// On the host the contents of what the guest has freed would travel once more when it is used again.
void Engine::State::discard_retired_on_host(Actions& actions) {
  for (const ExtentId id : retired_on_host) {
    if (!extents.is_retired(id) || extents[id].place != Place::Host) continue;
    if (can_discard) {
      discard(id, actions);
    } else {
      actions.push_back({ActionKind::Demote, id});  // of what is mixed, the part on the device
    }
  }
  retired_on_host.clear();
}

// What the guest has freed goes first.
void Engine::State::discard_retired(std::uint64_t incoming_bytes, Actions& actions) {
  discard_retired_on_host(actions);
  while (can_discard && extents.resident_bytes() + incoming_bytes > budget_bytes &&
         extents.least_recently_retired() != kNoExtent)
    discard(extents.least_recently_retired(), actions);
}

void Engine::State::demote_oldest(ExtentId oldest, std::uint64_t incoming_bytes, Actions& actions) {
  for (ExtentId victim = oldest; extents.resident_bytes() + incoming_bytes > budget_bytes && victim != kNoExtent;) {
    const ExtentId next = extents[victim].newer;
    actions.push_back({ActionKind::Demote, victim});
    apply(actions.back());
    victim = next;
  }
}

void Engine::launch(const Launch& event, Actions& actions) { state_->run(event, State::Arrival::ByFault, actions); }

void Engine::copy(const Launch& event, Actions& actions) { state_->run(event, State::Arrival::ByPrefetch, actions); }

void Engine::follow(const Launch& event, bool is_copy, std::uint64_t most_retired_bytes, Actions& actions) {
  const auto [own_bytes, incoming_bytes] = state_->touch(event, !is_copy);
  state_->discard_retired_on_host(actions);
  while (state_->can_discard && state_->extents.retired_resident_bytes() > most_retired_bytes)
    state_->discard(state_->extents.least_recently_retired(), actions);
  if (incoming_bytes > 0) {
    for (const ExtentId id : event.touched) place(id, true);
  }
  state_->account(event, own_bytes, !is_copy);
}

void Engine::count_planned(std::uint64_t h2d_bytes, std::uint64_t d2h_bytes) noexcept {
  state_->totals.h2d_prefetch_bytes += h2d_bytes;
  state_->totals.d2h_demote_bytes += d2h_bytes;
}

void Engine::place(ExtentId extent, bool is_on_device) noexcept {
  Extents& extents = state_->extents;
  if (!extents.contains(extent) || (extents[extent].place == Place::Device) == is_on_device) return;
  is_on_device ? extents.move_to_device(extent) : extents.move_to_host(extent);
}

Engine::State::Bytes Engine::State::touch(const Launch& event, bool is_launch) {
  ++launches;
  std::uint64_t staleness = 0;
  Bytes bytes;
  for (const ExtentId id : event.touched) {
    if (!extents.contains(id)) continue;
    const Extent& extent = extents[id];
    if (extent.touched_at == launches) continue;  // named twice
    staleness = std::max(staleness, launches - extent.touched_at);
    extents.touch(id, launches);
    bytes.own += extent.bytes;
    if (extent.place != Place::Device) bytes.incoming += extent.bytes;
    if (extent.iteration != current.ordinal + 1) {
      extents.mark_counted(id, current.ordinal + 1);
      working_set_alive_bytes += extent.bytes;
    }
  }
  lifetimes.launched(event.touched, launches, iterations.period_launches());
  // Copies belong to the iteration in which they fall but do not make one: loading a model is a long run of equal
  // copies. Launches that touch nothing of ours count a little.
  // What a launch touches is no part of what it is recognised by: padding and unused entries of by-value structs hold
  // what was on the caller's stack, which points into live memory in one iteration and not in the next (PyTorch's
  // TensorListMetadata). Staleness, which tells layers from iterations, bears with some of that.
  if (is_launch) iterations.observe(event.signature, bytes.own + 1, staleness);
  return bytes;
}

void Engine::State::run(const Launch& event, Arrival arrival, Actions& actions) {
  const bool is_launch = arrival == Arrival::ByFault;
  const auto [own_bytes, incoming_bytes] = touch(event, is_launch);

  discard_retired(incoming_bytes, actions);
  const std::size_t first = actions.size();
  policy->before_launch(extents, {event, launches, incoming_bytes, budget_bytes, !is_launch, can_discard, iterations},
                        actions);
  for (std::size_t i = first; i < actions.size(); ++i) apply(actions[i]);
  demote_oldest(extents.least_recently_retired(), incoming_bytes, actions);

  if (incoming_bytes > 0) {
    for (const ExtentId id : event.touched) {
      if (!extents.contains(id) || extents[id].place == Place::Device) continue;
      if (arrival == Arrival::ByPrefetch) {
        actions.push_back({ActionKind::Prefetch, id});
        apply(actions.back());
      } else {
        if (extents[id].place == Place::Host) {
          totals.h2d_demand_bytes += extents[id].bytes;
          lifetimes.migrated(id, extents[id].bytes);
        }
        extents.move_to_device(id);
      }
    }
  }
  account(event, own_bytes, is_launch);
}

void Engine::State::apply(const Action& action) {
  const Extent& extent = extents[action.extent];
  switch (action.kind) {
    case ActionKind::Demote:
      if (extent.place != Place::Device) return;
      ++totals.demotions;
      totals.d2h_demote_bytes += extent.bytes;
      lifetimes.migrated(action.extent, extent.bytes);
      extents.move_to_host(action.extent);
      return;
    case ActionKind::Prefetch:
      if (extent.place == Place::Host) {
        totals.h2d_prefetch_bytes += extent.bytes;
        lifetimes.migrated(action.extent, extent.bytes);
      }
      extents.move_to_device(action.extent);
      return;
    case ActionKind::Discard:
      totals.discarded_bytes += extent.bytes;
      extents.discard(action.extent);
      return;
  }
}

void Engine::State::account(const Launch& event, std::uint64_t own_bytes, bool is_launch) {
  if (own_bytes > budget_bytes) ++totals.budget_excursions;
  if (launches == 1) current.begin_ns = event.time_ns;
  ++(is_launch ? current.launches : current.copies);
  current.working_set_bytes = std::max(current.working_set_bytes, working_set_alive_bytes);
  current.footprint_bytes = std::max(current.footprint_bytes, extents.footprint_bytes());
  if (event.time_ns != 0) current.end_ns = event.time_ns;

  if (!is_launch || !iterations.iteration_completed()) return;
  current.confidence = iterations.confidence();
  current.migrated = totals - totals_at_begin;
  completed = current;
  totals_at_begin = totals;
  working_set_alive_bytes = 0;
  current = {};
  current.ordinal = completed->ordinal + 1;
  current.begin_ns = current.end_ns = completed->end_ns;
}

bool Engine::is_resident(ExtentId extent) const noexcept {
  return state_->extents.contains(extent) && state_->extents[extent].place == Place::Device;
}
std::uint64_t Engine::staleness(ExtentId extent) const noexcept {
  return state_->extents.contains(extent) ? state_->launches - state_->extents[extent].touched_at : 0;
}
bool Engine::looks_ahead() const noexcept { return state_->policy->looks_ahead(); }
std::uint64_t Engine::resident_bytes() const noexcept { return state_->extents.resident_bytes(); }
std::uint64_t Engine::footprint_bytes() const noexcept { return state_->extents.footprint_bytes(); }
const MigrationTotals& Engine::totals() const noexcept { return state_->totals; }
const IterationDetector& Engine::iterations() const noexcept { return state_->iterations; }
void Engine::set_budget(std::uint64_t budget_bytes) noexcept { state_->budget_bytes = budget_bytes; }

LifetimeTallies Engine::lifetimes() const noexcept {
  return state_->lifetimes.tallies(state_->launches, state_->iterations.period_launches());
}

std::optional<IterationStats> Engine::take_completed_iteration() noexcept {
  return std::exchange(state_->completed, std::nullopt);
}

IterationStats Engine::current_iteration() const noexcept {
  IterationStats stats = state_->current;
  stats.confidence = state_->iterations.confidence();
  stats.migrated = state_->totals - state_->totals_at_begin;
  return stats;
}

}  // namespace hmshim::policy
