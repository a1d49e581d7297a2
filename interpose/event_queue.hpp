// Launches on their way from the guest's threads to the engine. A producer never allocates, waits or enters the kernel:
// when the ring is full the event is lost and counted. One consumer at a time; the engine's lock says who.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "policy/event.hpp"
#include "policy/zeroed_array.hpp"

namespace hmshim::interpose {

class EventQueue {
 public:
  // `slots` is a power of two; a launch takes one slot for each 7 extents it names, at least one.
  explicit EventQueue(std::size_t slots);

  // False when there is no room. Any thread.
  bool push(const policy::Launch& launch, bool is_copy) noexcept;

  // Hands every complete event to `consume(const policy::Launch&, bool is_copy)`, oldest first.
  template <class Consume>
  void drain(Consume&& consume);

  [[nodiscard]] bool is_half_full() const noexcept;
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kPerSlot = 7;

  // One cache line. `turn` is position + 1 once the slot's content is complete; the first slot of an event carries its
  // head.
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> turn;
    std::uint64_t tick;
    std::uint64_t signature;
    std::uint64_t time_ns;
    std::uint16_t extents;  // of the whole event
    bool is_copy : 1;
    bool is_part : 1;
    bool is_planned : 1;
    std::uint8_t stream;
    policy::ExtentId extent[kPerSlot];
  };
  static_assert(sizeof(Slot) == 64);

  [[nodiscard]] static std::size_t slots_for(std::size_t extents) noexcept {
    return extents <= kPerSlot ? 1 : (extents + kPerSlot - 1) / kPerSlot;
  }

  policy::ZeroedArray<Slot> ring_;
  std::uint64_t slots_;
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  std::atomic<std::uint64_t> lost_{0};
};

template <class Consume>
void EventQueue::drain(Consume&& consume) {
  std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  policy::ExtentId extents[policy::kMaxTouched];
  for (;;) {
    const Slot& first = ring_[tail & (slots_ - 1)];
    if (first.turn.load(std::memory_order_acquire) != tail + 1) return;
    const std::size_t count = first.extents;
    const std::size_t used = slots_for(count);
    for (std::size_t slot = 0, done = 0; slot < used; ++slot) {
      const Slot& part = ring_[(tail + slot) & (slots_ - 1)];
      for (std::size_t i = 0; i < kPerSlot && done < count; ++i) extents[done++] = part.extent[i];
    }
    const policy::Launch launch{first.tick,   first.signature, first.time_ns,   {extents, count},
                                first.stream, first.is_part,   first.is_planned};
    const bool is_copy = first.is_copy;
    tail += used;
    tail_.store(tail, std::memory_order_release);
    consume(launch, is_copy);
  }
}

}  // namespace hmshim::interpose
