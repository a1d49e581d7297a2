#include "policy/engine.hpp"

#include <algorithm>
#include <utility>

#include "policy/extents.hpp"
#include "policy/mix.hpp"
#include "policy/policy.hpp"

namespace hmshim::policy {
namespace {

MigrationTotals operator-(const MigrationTotals& a, const MigrationTotals& b) noexcept {
  return {.h2d_demand_bytes = a.h2d_demand_bytes - b.h2d_demand_bytes,
          .h2d_prefetch_bytes = a.h2d_prefetch_bytes - b.h2d_prefetch_bytes,
          .d2h_demote_bytes = a.d2h_demote_bytes - b.d2h_demote_bytes,
          .demotions = a.demotions - b.demotions,
          .budget_excursions = a.budget_excursions - b.budget_excursions};
}

}  // namespace

struct Engine::State {
  explicit State(const EngineConfig& config) : policy(make_policy(config.policy)), budget_bytes(config.budget_bytes) {}

  enum class Arrival : std::uint8_t { ByFault, ByPrefetch };

  void run(const Launch& event, Arrival arrival, Actions& actions);
  void apply(const Action& action);
  void account(const Launch& event, std::uint64_t own_bytes, bool is_launch);

  std::unique_ptr<Policy> policy;
  std::uint64_t budget_bytes;
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
  // Launches are recognised by the sizes of what they touch. The ordinal in event.identity would tell identical layers
  // apart, but that of a temporary need not repeat from one iteration to the next, and which extents are temporaries
  // shows only later: a signature that changed then would cost the detector an iteration. Staleness tells layers from
  // iterations.
  state_->extents.add(event.extent, event.bytes, mix(event.bytes), state_->launches);
}

void Engine::freed(const Freed& event) {
  if (!state_->extents.contains(event.extent)) return;
  const Extent& extent = state_->extents[event.extent];
  if (extent.iteration == state_->current.ordinal + 1) state_->working_set_alive_bytes -= extent.bytes;
  state_->extents.remove(event.extent);
}

void Engine::launch(const Launch& event, Actions& actions) { state_->run(event, State::Arrival::ByFault, actions); }

void Engine::copy(const Launch& event, Actions& actions) { state_->run(event, State::Arrival::ByPrefetch, actions); }

void Engine::State::run(const Launch& event, Arrival arrival, Actions& actions) {
  ++launches;
  std::uint64_t signature = event.signature;
  std::uint64_t staleness = 0;
  std::uint64_t own_bytes = 0;
  std::uint64_t incoming_bytes = 0;
  for (const ExtentId id : event.touched) {
    if (!extents.contains(id)) continue;
    const Extent& extent = extents[id];
    if (extent.touched_at == launches) continue;  // named twice
    staleness = std::max(staleness, launches - extent.touched_at);
    extents.touch(id, launches);
    signature += extent.fingerprint;
    own_bytes += extent.bytes;
    if (extent.place != Place::Device) incoming_bytes += extent.bytes;
    if (extent.iteration != current.ordinal + 1) {
      extents.mark_counted(id, current.ordinal + 1);
      working_set_alive_bytes += extent.bytes;
    }
  }

  // Copies belong to the iteration in which they fall but do not make one: loading a model is a long run of equal
  // copies. Launches that touch nothing of ours count a little.
  const bool is_launch = arrival == Arrival::ByFault;
  if (is_launch) iterations.observe(signature, own_bytes + 1, staleness);

  const std::size_t first = actions.size();
  policy->before_launch(extents, {event, launches, incoming_bytes, budget_bytes}, actions);
  for (std::size_t i = first; i < actions.size(); ++i) apply(actions[i]);

  if (incoming_bytes > 0) {
    for (const ExtentId id : event.touched) {
      if (!extents.contains(id) || extents[id].place == Place::Device) continue;
      if (arrival == Arrival::ByPrefetch) {
        actions.push_back({ActionKind::Prefetch, id});
        apply(actions.back());
      } else {
        if (extents[id].place == Place::Host) totals.h2d_demand_bytes += extents[id].bytes;
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
      extents.move_to_host(action.extent);
      return;
    case ActionKind::Prefetch:
      if (extent.place == Place::Host) totals.h2d_prefetch_bytes += extent.bytes;
      extents.move_to_device(action.extent);
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
std::uint64_t Engine::resident_bytes() const noexcept { return state_->extents.resident_bytes(); }
std::uint64_t Engine::footprint_bytes() const noexcept { return state_->extents.footprint_bytes(); }
const MigrationTotals& Engine::totals() const noexcept { return state_->totals; }
const IterationDetector& Engine::iterations() const noexcept { return state_->iterations; }
void Engine::set_budget(std::uint64_t budget_bytes) noexcept { state_->budget_bytes = budget_bytes; }

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
