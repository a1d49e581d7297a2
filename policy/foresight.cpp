#include "policy/foresight.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "policy/mix.hpp"

namespace hmshim::policy {

void Foresight::observe(const Extents& extents, const Demand& demand) {
  const Launch& launch = demand.launch;
  if (launch.foreknowledge != nullptr && !recording_.launches.empty())
    recording_.launches.back().duration_ns = launch.foreknowledge->last_launch_ns;
  if (begins_) {
    if (recording_.is_whole) write_book();
    recording_ = {};
    recording_.is_whole = true;
    recording_.began_at = demand.ordinal;
    position_ = 0;
    is_in_step_ = !book_.launches.empty();
  } else {
    ++position_;
  }
  begins_ = demand.iterations.iteration_completed();

  const auto first = static_cast<std::uint32_t>(recording_.operands.size());
  recording_.launches.push_back({launch.signature, first});
  for (const ExtentId id : launch.touched) {
    if (extents.contains(id)) recording_.operands.push_back({id, extents[id].allocated_at, extents[id].bytes});
  }

  const std::size_t count = recording_.operands.size() - first;
  is_in_step_ = is_in_step_ && position_ < book_.launches.size() &&
                book_.launches[position_].signature == launch.signature &&
                book_.operands_end(position_) - book_.launches[position_].first_operand == count;
  if (!is_in_step_) return;
  for (std::size_t i = 0; i < count; ++i) {
    bind(slots_[book_.launches[position_].first_operand + i], recording_.operands[first + i].id);
  }
}

// What was born before the round under way is a temporary of the round before, if that one saw its birth: then the
// operand that stands in the same place now is its successor, and both are one slot. All else that was there persists.
void Foresight::write_book() {
  const Recording before = std::exchange(book_, std::move(recording_));
  const bool is_alike = before.operands.size() == book_.operands.size();
  const auto instance = [](const Operand& operand) { return mix(operand.id) + operand.allocated_at; };
  std::unordered_map<std::uint64_t, std::uint32_t> first_before;  // instance → its first operand in the round before
  for (std::uint32_t at = 0; is_alike && at < before.operands.size(); ++at) {
    if (before.has_seen_birth_of(before.operands[at])) first_before.emplace(instance(before.operands[at]), at);
  }

  slots_.clear();
  lives_.clear();
  std::unordered_map<std::uint64_t, Slot> slot_of_instance;
  std::unordered_map<std::uint32_t, Slot> slot_of_birth;  // by operand: of temporaries that live across the end
  std::vector<std::uint32_t> births;                      // by slot: operand
  for (std::uint32_t launch = 0; launch < book_.launches.size(); ++launch) {
    for (std::uint32_t at = book_.launches[launch].first_operand; at < book_.operands_end(launch); ++at) {
      const Operand& operand = book_.operands[at];
      const auto [known, is_new] = slot_of_instance.try_emplace(instance(operand), kNoSlot);
      if (is_new) {
        const auto successor = slot_of_birth.find(at);
        if (successor != slot_of_birth.end() && book_.has_seen_birth_of(operand)) {
          known->second = successor->second;
          lives_[known->second].birth = launch;
        } else {
          known->second = static_cast<Slot>(lives_.size());
          const auto birth = first_before.find(instance(operand));
          const bool lives_across = !book_.has_seen_birth_of(operand) && birth != first_before.end();
          if (lives_across) slot_of_birth.emplace(birth->second, known->second);
          lives_.push_back({!book_.has_seen_birth_of(operand) && !lives_across, launch, {}, operand.bytes});
          births.push_back(at);
        }
        if (book_.has_seen_birth_of(operand)) births[known->second] = at;
      }
      slots_.push_back(known->second);
      std::vector<std::uint32_t>& uses = lives_[known->second].uses;
      if (uses.empty() || uses.back() != launch) uses.push_back(launch);
    }
  }

  born_bytes_.assign(book_.launches.size(), 0);
  dead_bytes_.assign(book_.launches.size(), 0);
  extent_of_.assign(lives_.size(), kNoExtent);
  slot_of_.assign(slot_of_.size(), kNoSlot);
  for (Slot slot = 0; slot < lives_.size(); ++slot) {
    Life& life = lives_[slot];
    if (life.is_persistent) life.birth = 0;
    for (std::uint32_t& use : life.uses) use = age(life, use);
    std::sort(life.uses.begin(), life.uses.end());
    // A round begins with what persists and with what was born in the last one and still has uses.
    const bool is_alive = life.is_persistent || life.birth + life.uses.back() >= book_.launches.size();
    if (is_alive) bind(slot, book_.operands[births[slot]].id);
    if (life.is_persistent) continue;
    born_bytes_[life.birth] += life.bytes;
    dead_bytes_[(life.birth + life.uses.back()) % book_.launches.size()] += life.bytes;
  }
}

std::uint64_t Foresight::growth_bytes(std::uint32_t launches) const {
  if (!is_in_step_) return 0;
  std::int64_t growth = -static_cast<std::int64_t>(dead_bytes_[position_]), most = 0;
  for (std::uint32_t ahead = 1; ahead <= launches; ++ahead) {
    const std::size_t launch = (position_ + ahead) % book_.launches.size();
    growth += static_cast<std::int64_t>(born_bytes_[launch]);
    most = std::max(most, growth);
    growth -= static_cast<std::int64_t>(dead_bytes_[launch]);
  }
  return static_cast<std::uint64_t>(most);
}

void Foresight::bind(Slot slot, ExtentId extent) {
  extent_of_[slot] = extent;
  if (extent >= slot_of_.size()) slot_of_.resize(extent + 1, kNoSlot);
  slot_of_[extent] = slot;
}

void Foresight::upcoming(std::uint32_t first, std::uint32_t last, std::vector<ExtentId>& touched) const {
  if (!is_in_step_) return;
  const auto launches = static_cast<std::uint32_t>(book_.launches.size());
  for (std::uint32_t ahead = first; ahead <= std::min(last, launches); ++ahead) {
    const std::uint32_t launch = (position_ + ahead) % launches;
    for (std::uint32_t at = book_.launches[launch].first_operand; at < book_.operands_end(launch); ++at) {
      const Life& life = lives_[slots_[at]];
      const ExtentId extent = extent_of_[slots_[at]];
      const bool is_bound = extent != kNoExtent && slot_of_[extent] == slots_[at];
      // Not the one that will have been born by then.
      if (is_bound && (life.is_persistent || age(life, position_) + ahead < launches)) touched.push_back(extent);
    }
  }
}

Tick Foresight::next_use(ExtentId extent) const {
  if (!is_in_step_ || extent >= slot_of_.size() || slot_of_[extent] == kNoSlot) return kNever;
  const Life& life = lives_[slot_of_[extent]];
  const std::uint32_t now = age(life, position_);
  const auto next = std::upper_bound(life.uses.begin(), life.uses.end(), now);
  if (next != life.uses.end()) return *next - now;
  return life.is_persistent ? book_.launches.size() - now + life.uses.front() : kNever;
}

}  // namespace hmshim::policy
