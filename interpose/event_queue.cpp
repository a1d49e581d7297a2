#include "interpose/event_queue.hpp"

#include <algorithm>

namespace hmshim::interpose {

EventQueue::EventQueue(std::size_t slots) : ring_(slots), slots_(slots) {}

bool EventQueue::push(const policy::Launch& launch, bool is_copy) noexcept {
  const std::size_t count = std::min(launch.touched.size(), policy::kMaxTouched);
  const std::size_t used = slots_for(count);
  std::uint64_t head = head_.load(std::memory_order_relaxed);
  do {
    if (head + used - tail_.load(std::memory_order_acquire) > slots_) {
      lost_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
  } while (!head_.compare_exchange_weak(head, head + used, std::memory_order_relaxed));

  for (std::size_t slot = 1, done = kPerSlot; slot < used; ++slot, done += kPerSlot) {
    Slot& part = ring_[(head + slot) & (slots_ - 1)];
    std::copy_n(launch.touched.data() + done, std::min(kPerSlot, count - done), part.extent);
  }
  Slot& first = ring_[head & (slots_ - 1)];
  first.tick = launch.tick;
  first.signature = launch.signature;
  first.time_ns = launch.time_ns;
  first.extents = static_cast<std::uint16_t>(count);
  first.is_copy = is_copy;
  first.is_part = launch.is_part;
  first.is_planned = launch.is_planned;
  first.stream = launch.stream;
  std::copy_n(launch.touched.data(), std::min(kPerSlot, count), first.extent);
  first.turn.store(head + 1, std::memory_order_release);
  return true;
}

bool EventQueue::is_half_full() const noexcept {
  return head_.load(std::memory_order_relaxed) - tail_.load(std::memory_order_relaxed) > slots_ / 2;
}

}  // namespace hmshim::interpose
