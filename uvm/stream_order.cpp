#include "uvm/stream_order.hpp"

#include <algorithm>
#include <utility>

namespace hmshim::uvm {

namespace {

std::thread::id thread_of(CUstream stream) noexcept {
  return stream == CU_STREAM_PER_THREAD ? std::this_thread::get_id() : std::thread::id();
}

}  // namespace

std::optional<StreamOrder::Index> StreamOrder::find(CUstream stream) const noexcept {
  for (Index index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    if (slot.stream == stream && slot.is_admitted && !slot.is_gone && slot.thread == thread_of(stream)) return index;
  }
  return std::nullopt;
}

std::vector<StreamOrder::Slot>::iterator StreamOrder::slot_of(CUstream stream) noexcept {
  return std::ranges::find_if(slots_, [stream](const Slot& slot) {
    return slot.stream == stream && !slot.is_gone && slot.thread == thread_of(stream);
  });
}

StreamOrder::Wait StreamOrder::add(CUstream stream, CUevent event) {
  Wait wait;
  if (slot_of(stream) != slots_.end()) {
    wait.spare = event;
  } else {
    const Slot slot{.stream = stream, .thread = thread_of(stream), .event = event, .since = ++clock_};
    const auto unused = std::ranges::find(slots_, true, &Slot::is_done);
    if (unused == slots_.end()) {
      slots_.push_back(slot);
    } else {
      wait.spare = std::exchange(*unused, slot).event;
    }
    ++undone_;
  }
  if (owes_newcomers_) {
    add_sources(wait, {});
    wait.targets.push_back(stream);
  }
  return wait;
}

StreamOrder::Index StreamOrder::admit(CUstream stream) noexcept {
  const auto slot = slot_of(stream);
  slot->is_admitted = true;
  return static_cast<Index>(slot - slots_.begin());
}

bool StreamOrder::is_ordered(Point point, Index requester) const noexcept {
  if (point.at <= barrier_) return true;
  if (point.stream == requester && requester != kAny) return true;
  if (point.stream != kAny && (slots_[point.stream].since > point.at || slots_[point.stream].is_done)) return true;
  // A single stream is in order with itself, whatever was named.
  return undone_ <= 1 && (requester == kAny || !slots_[requester].is_gone);
}

bool StreamOrder::is_foreign(const Slot& slot) noexcept {
  return slot.stream == CU_STREAM_PER_THREAD && slot.thread != std::this_thread::get_id();
}

void StreamOrder::add_sources(Wait& wait, Point point) const {
  for (Index index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    if (slot.is_done || (point.stream != kAny && point.stream != index)) continue;
    // Another thread recorded its own at its last free, not at its last work.
    if (slot.is_lost || (point.stream == kAny && is_foreign(slot) && !slot.is_gone)) wait.is_possible = false;
    if (std::ranges::find(wait.sources, index, &Source::index) == wait.sources.end())
      wait.sources.push_back({index, slot.stream, slot.event, slot.is_gone || is_foreign(slot), slot.is_gone});
  }
}

void StreamOrder::add_target(Wait& wait, const Slot& slot) const {
  if (slot.is_gone) return;
  if (is_foreign(slot)) wait.is_possible = false;
  wait.targets.push_back(slot.stream);
}

StreamOrder::Wait StreamOrder::wait_for(Point point, Index requester) const {
  Wait wait{.at = clock_, .is_barrier = point.stream == kAny && requester == kAny};
  add_sources(wait, point);
  if (requester != kAny) {
    add_target(wait, slots_[requester]);
  } else {
    for (const Slot& slot : slots_) add_target(wait, slot);
  }
  return wait;
}

StreamOrder::Wait StreamOrder::wait_for(std::span<const Point> points, CUstream target) const {
  Wait wait{.targets = {target}};
  for (const Point& point : points) {
    if (!is_settled(point)) add_sources(wait, point);  // a barrier was between the guest's streams only
  }
  return wait;
}

bool StreamOrder::execute(const DriverApi& api, Wait& wait) noexcept {
  if (!wait.is_possible) return false;
  for (CUstream target : wait.targets) {
    if (may_be_capturing(api, target)) return false;
  }
  for (Source& source : wait.sources) {
    if (source.is_gone) source.is_done = api.cuEventQuery(source.event) == CUDA_SUCCESS;
    if (source.is_recorded) continue;
    if (may_be_capturing(api, source.stream) || api.cuEventRecord(source.event, source.stream) != CUDA_SUCCESS)
      return false;
  }
  for (const Source& source : wait.sources) {
    if (source.is_done) continue;
    for (CUstream target : wait.targets) {
      const bool is_itself = target == source.stream && !source.is_recorded;
      if (!is_itself && api.cuStreamWaitEvent(target, source.event, 0) != CUDA_SUCCESS) return false;
    }
  }
  return true;
}

void StreamOrder::executed(const Wait& wait) noexcept {
  for (const Source& source : wait.sources) {
    if (!source.is_done || slots_[source.index].is_done) continue;
    slots_[source.index].is_done = true;
    --undone_;
  }
  if (wait.is_barrier) barrier_ = std::max(barrier_, wait.at);
}

}  // namespace hmshim::uvm
