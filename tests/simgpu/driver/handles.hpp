// Handles that can be told apart: by kind, by index and by generation. A handle is never dereferenced, so a stale one,
// one of another kind and plain junk are all found out, at the price of an array access.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace hmshim::simgpu {

// Where each kind's handles begin. Far from any address a process maps below 47 bits' top, and never 0, 1 or 2 (the
// special streams).
enum class HandleKind : std::uint64_t {
  Context = 1,
  Stream,
  Event,
  Module,
  Library,
  Function,
  Kernel,
  Pool,
  Graph,
  GraphExec,
  Node,
  Array,
  MipmappedArray,
  Physical
};

// Objects of one kind. find() takes no lock; create() and destroy() do. An object's storage stays readable after
// destroy(), so that a guest that races destroy against use gets an error or old data, not a crash.
template <class T, class Handle, HandleKind kKind>
class HandleTable {
 public:
  // Builds a T in place from the arguments.
  template <class... Arguments>
  Handle create(Arguments&&... arguments) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) grow();
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = *slot_at(index);
    slot.value.emplace(std::forward<Arguments>(arguments)...);
    const std::uint32_t generation = slot.generation.load(std::memory_order_relaxed) + 1;  // odd: live
    slot.generation.store(generation, std::memory_order_release);
    ++live_;
    return encode(index, generation);
  }

  [[nodiscard]] T* find(Handle handle) noexcept {
    const auto bits = reinterpret_cast<std::uint64_t>(handle);
    if (bits >> kKindShift != static_cast<std::uint64_t>(kKind)) return nullptr;
    Slot* slot = slot_at(static_cast<std::uint32_t>(bits >> kIndexShift & kIndexMask));
    if (slot == nullptr) return nullptr;
    const std::uint32_t generation = slot->generation.load(std::memory_order_acquire);
    if (generation % 2 == 0 || (generation & kGenerationMask) != (bits >> kGenerationShift & kGenerationMask)) {
      return nullptr;
    }
    return &*slot->value;
  }

  // False for a handle that find() would not find.
  bool destroy(Handle handle) {
    const std::lock_guard lock(mutex_);
    if (find(handle) == nullptr) return false;
    const auto index = static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(handle) >> kIndexShift & kIndexMask);
    slot_at(index)->generation.fetch_add(1, std::memory_order_release);  // even: free
    free_.push_back(index);
    --live_;
    return true;
  }

  [[nodiscard]] std::size_t live() const {
    const std::lock_guard lock(mutex_);
    return live_;
  }

  // Handles of the live objects that satisfy `matches`.
  template <class Predicate>
  [[nodiscard]] std::vector<Handle> select(Predicate matches) {
    const std::lock_guard lock(mutex_);
    std::vector<Handle> found;
    for (std::uint32_t index = 0; index < slots_; ++index) {
      Slot& slot = *slot_at(index);
      const std::uint32_t generation = slot.generation.load(std::memory_order_relaxed);
      if (generation % 2 == 1 && matches(*slot.value)) found.push_back(encode(index, generation));
    }
    return found;
  }

 private:
  // kind 4 | generation 18 | index 20 | 000: 45 bits, aligned as a pointer to an object would be.
  static constexpr unsigned kIndexShift = 3;
  static constexpr unsigned kGenerationShift = 23;
  static constexpr unsigned kKindShift = 41;
  static constexpr std::uint64_t kIndexMask = (1U << 20) - 1;
  static constexpr std::uint64_t kGenerationMask = (1U << 18) - 1;
  static constexpr std::uint32_t kChunkSlots = 1024;

  struct Slot {
    std::atomic<std::uint32_t> generation{0};
    std::optional<T> value;
  };

  static Handle encode(std::uint64_t index, std::uint64_t generation) noexcept {
    return reinterpret_cast<Handle>(static_cast<std::uint64_t>(kKind) << kKindShift |
                                    (generation & kGenerationMask) << kGenerationShift | index << kIndexShift);
  }

  Slot* slot_at(std::uint32_t index) noexcept {
    Slot* chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : chunk + index % kChunkSlots;
  }

  void grow() {
    if (slots_ / kChunkSlots == chunks_.size())
      throw std::length_error("simgpu: more than a million handles of a kind");
    chunks_[slots_ / kChunkSlots].store(new Slot[kChunkSlots], std::memory_order_release);
    for (std::uint32_t i = kChunkSlots; i > 0; --i) free_.push_back(slots_ + i - 1);
    slots_ += kChunkSlots;
  }

  mutable std::mutex mutex_;
  // Chunks are never freed: the tables live as long as the process.
  std::array<std::atomic<Slot*>, (kIndexMask + 1) / kChunkSlots> chunks_{};
  std::vector<std::uint32_t> free_;
  std::uint32_t slots_ = 0;
  std::size_t live_ = 0;
};

}  // namespace hmshim::simgpu
