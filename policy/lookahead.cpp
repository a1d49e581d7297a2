#include "policy/lookahead.hpp"

#include <algorithm>
#include <utility>

namespace hmshim::policy {

void Lookahead::before_launch(const Extents& extents, const Demand& demand, Actions& actions) {
  leaving_.clear();
  coming_.clear();
  if (!demand.is_copy) {
    foresight_.observe(extents, demand);
    consult_plan(extents, demand, leaving_, coming_);
  }
  look(extents, demand);
  // What the guest has freed is the memory of what it allocates next. It is worth keeping where it would have to be
  // copied to leave and would be copied back for its next owner; where it can be dropped, what is alive comes first.
  const std::uint64_t freed_bytes = extents.retired_resident_bytes();
  const std::uint64_t kept_bytes = demand.can_discard ? 0 : freed_bytes;
  Room room{.resident_bytes = extents.resident_bytes(),
            .live_bytes = extents.resident_bytes() - freed_bytes + kept_bytes,
            .retired = extents.least_recently_retired()};

  for (const ExtentId id : leaving_) {
    if (!extents.contains(id) || extents[id].place != Place::Device) continue;
    actions.push_back({ActionKind::Demote, id});
    static_cast<void>(keep(id, demand));  // no victim any more
    room.live_bytes -= extents[id].bytes;
    room.resident_bytes -= extents[id].bytes;
  }

  const bool fits = reserve(extents, demand, demand.incoming_bytes, 0, room, actions);
  take(extents, demand, demand.incoming_bytes, room, actions);
  for (const ExtentId id : demand.launch.touched) {
    if (extents.contains(id) && extents[id].place != Place::Device) actions.push_back({ActionKind::Prefetch, id});
  }
  if (!fits) return;
  for (const ExtentId id : near_) {
    if (!reserve(extents, demand, extents[id].bytes, foresight_.next_use(id), room, actions)) return;
    take(extents, demand, extents[id].bytes, room, actions);
    actions.push_back({ActionKind::Prefetch, id});
  }
  const std::uint32_t launches = launches_of_room();
  const std::uint64_t growth_bytes = foresight_.growth_bytes(launches);
  const std::uint64_t far_bytes = launches > kDegree ? far_bytes_ : 0;
  reserve(extents, demand, far_bytes + growth_bytes - std::min(growth_bytes, kept_bytes), Tick{launches}, room,
          actions);
}

bool Lookahead::keep(ExtentId id, const Demand& demand) {
  if (id >= kept_at_.size()) kept_at_.resize(id + 1);
  return std::exchange(kept_at_[id], demand.ordinal) == demand.ordinal;
}

void Lookahead::look(const Extents& extents, const Demand& demand) {
  // An extent is counted where it is first named.
  const auto is_new = [&](ExtentId id) {
    return !keep(id, demand) && extents.contains(id) && extents[id].place != Place::Device;
  };
  for (const ExtentId id : demand.launch.touched) static_cast<void>(is_new(id));
  window_.clear();
  near_.clear();
  far_bytes_ = 0;
  foresight_.upcoming(1, kDegree, window_);
  for (const ExtentId id : window_) {
    if (is_new(id) && !is_held_back(id)) near_.push_back(id);
  }
  for (const ExtentId id : coming_) {
    if (is_new(id)) near_.push_back(id);
  }
  window_.clear();
  foresight_.upcoming(kDegree + 1, 2 * kDegree, window_);
  for (const ExtentId id : window_) {
    if (is_new(id) && !is_held_back(id)) far_bytes_ += extents[id].bytes;
  }
}

bool Lookahead::reserve(const Extents& extents, const Demand& demand, std::uint64_t bytes, Tick for_use_in, Room& room,
                        Actions& actions) {
  while (room.live_bytes + bytes > demand.budget_bytes) {
    if (!std::exchange(room.is_lined_up, true)) line_up(extents);
    const ExtentId victim = next_victim(extents, for_use_in);
    if (victim == kNoExtent) return false;
    if (is_kept(victim, demand)) continue;
    actions.push_back({ActionKind::Demote, victim});
    room.live_bytes -= extents[victim].bytes;
    room.resident_bytes -= extents[victim].bytes;
  }
  return true;
}

void Lookahead::take(const Extents& extents, const Demand& demand, std::uint64_t bytes, Room& room, Actions& actions) {
  room.live_bytes += bytes;
  room.resident_bytes += bytes;
  for (; room.resident_bytes > demand.budget_bytes && room.retired != kNoExtent;
       room.retired = extents[room.retired].newer) {
    actions.push_back({demand.can_discard ? ActionKind::Discard : ActionKind::Demote, room.retired});
    room.resident_bytes -= extents[room.retired].bytes;
  }
}

}  // namespace hmshim::policy
