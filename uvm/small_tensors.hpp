// Tensors too small for a block of their own: each 2 MiB block of device memory is cut into slots of one size. Small
// tensors have no extent: they stay on the device. Bookkeeping only, of one owner who holds the lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "uvm/block_runs.hpp"

namespace hmshim::uvm {

// The alignment that the driver gives, and frameworks rely on.
inline constexpr std::uint64_t kSmallAlignmentBytes = 512;
// From here on a tensor is worth whole blocks: half of one is the most that it can waste.
inline constexpr std::uint64_t kLeastRunBytes = policy::kBlockBytes / 2;

// The slot that a tensor of this size gets: multiples of 512 bytes, four steps a doubling, so that at most a fifth of a
// slot is unused above 2 KiB.
[[nodiscard]] std::uint64_t small_slot_bytes(std::uint64_t bytes) noexcept;

struct SmallSlot {
  SmallChunk* chunk = nullptr;
  SmallSlot* older = nullptr;
  StreamOrder::Point freed;
  std::uint32_t bytes = 0;  // asked for by the tenant
  std::uint16_t pins = 0;   // as Run::pins
  Run::State state = Run::State::Free;
};

// A block full of slots.
struct SmallChunk {
  Run* run = nullptr;
  std::uint64_t slot_bytes = 0;
  std::uint64_t used = 0;
  std::vector<SmallSlot> slots{};

  [[nodiscard]] std::uint64_t address_of(const SmallSlot& slot) const noexcept {
    return run->base + static_cast<std::uint64_t>(&slot - slots.data()) * slot_bytes;
  }
};

class SmallTensors {
 public:
  // The newest free slot for so many bytes of which `accept` is true, taken; nullptr where there is none.
  template <class Accept>
  [[nodiscard]] SmallSlot* take(std::uint64_t bytes, Accept accept) {
    const std::uint64_t slot_bytes = small_slot_bytes(bytes);
    const auto bin = bins_.find(slot_bytes);
    if (bin == bins_.end()) return nullptr;
    for (SmallSlot** link = &bin->second; *link != nullptr; link = &(*link)->older) {
      if (!accept(**link)) continue;
      SmallSlot& slot = **link;
      *link = slot.older;
      slot.bytes = static_cast<std::uint32_t>(bytes);
      slot.state = Run::State::Used;
      ++slot.chunk->used;
      used_bytes_ += slot_bytes;
      return &slot;
    }
    return nullptr;
  }
  void give(SmallSlot& slot) noexcept;
  // Its tenant is gone, but nobody gets it before it is given.
  void hold(SmallSlot& slot) noexcept;
  // The slot of a chunk that begins at the address and is not free, else nullptr.
  [[nodiscard]] static SmallSlot* find(SmallChunk& chunk, std::uint64_t address) noexcept;

  // Cuts a run of one block, which is used, into slots.
  void add_chunk(Run& run, std::uint64_t slot_bytes);
  // Forgets the chunks of which no slot is used, nor was freed after `at`; their runs.
  [[nodiscard]] std::vector<Run*> remove_idle_chunks(std::uint64_t at);
  void clear() noexcept;

  [[nodiscard]] std::uint64_t used_bytes() const noexcept { return used_bytes_; }

 private:
  std::vector<std::unique_ptr<SmallChunk>> chunks_;
  std::map<std::uint64_t, SmallSlot*> bins_;  // newest free slot by size
  std::uint64_t used_bytes_ = 0;
};

}  // namespace hmshim::uvm
