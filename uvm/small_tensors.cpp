#include "uvm/small_tensors.hpp"

#include <algorithm>
#include <bit>

namespace hmshim::uvm {

std::uint64_t small_slot_bytes(std::uint64_t bytes) noexcept {
  const std::uint64_t step = std::max(std::bit_ceil(bytes) / 8, kSmallAlignmentBytes);
  return (bytes + step - 1) / step * step;
}

void SmallTensors::hold(SmallSlot& slot) noexcept {
  slot.state = Run::State::Held;
  used_bytes_ -= slot.chunk->slot_bytes;
}

void SmallTensors::give(SmallSlot& slot) noexcept {
  SmallChunk& chunk = *slot.chunk;
  if (slot.state == Run::State::Used) hold(slot);
  SmallSlot*& newest = bins_.find(chunk.slot_bytes)->second;
  slot.state = Run::State::Free;
  slot.older = newest;
  newest = &slot;
  --chunk.used;
}

SmallSlot* SmallTensors::find(SmallChunk& chunk, std::uint64_t address) noexcept {
  const std::uint64_t offset = address - chunk.run->base;
  const std::uint64_t index = offset / chunk.slot_bytes;
  if (offset % chunk.slot_bytes != 0 || index >= chunk.slots.size()) return nullptr;
  SmallSlot& slot = chunk.slots[index];
  return slot.state != Run::State::Free ? &slot : nullptr;
}

void SmallTensors::add_chunk(Run& run, std::uint64_t slot_bytes) {
  auto chunk = std::make_unique<SmallChunk>(SmallChunk{.run = &run, .slot_bytes = slot_bytes});
  chunk->slots.resize(policy::kBlockBytes / slot_bytes);
  chunks_.push_back(std::move(chunk));
  SmallSlot*& newest = bins_[slot_bytes];
  SmallChunk& added = *chunks_.back();
  for (auto slot = added.slots.rbegin(); slot != added.slots.rend(); ++slot) {
    *slot = {.chunk = &added, .older = newest, .freed = run.freed};
    newest = &*slot;
  }
  run.chunk = &added;
}

std::vector<Run*> SmallTensors::remove_idle_chunks(std::uint64_t at) {
  std::vector<Run*> runs;
  for (const auto& chunk : chunks_) {
    const auto is_settled = [at](const SmallSlot& slot) { return slot.freed.at <= at; };
    if (chunk->used == 0 && std::ranges::all_of(chunk->slots, is_settled)) runs.push_back(chunk->run);
  }
  for (Run* run : runs) run->chunk = nullptr;
  const auto is_removed = [](const SmallChunk& chunk) { return chunk.run->chunk == nullptr; };
  for (auto& [slot_bytes, newest] : bins_) {
    for (SmallSlot** link = &newest; *link != nullptr;) {
      if (is_removed(*(*link)->chunk)) {
        *link = (*link)->older;
      } else {
        link = &(*link)->older;
      }
    }
  }
  std::erase_if(chunks_, [&](const auto& chunk) { return is_removed(*chunk); });
  return runs;
}

void SmallTensors::clear() noexcept {
  chunks_.clear();
  bins_.clear();
  used_bytes_ = 0;
}

}  // namespace hmshim::uvm
