// What the engine believes about every extent: size, place, and the order of last touches. Policies read it, only the
// engine writes it. The order is a list threaded through the table, so a touch is O(1) and allocates nothing.
//
// A retired extent is one that the guest has freed and whose memory waits for the next tenant: it is not contained, but
// what it occupies of the device is resident all the same.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/vocabulary.hpp"

namespace hmshim::policy {

enum class Place : std::uint8_t {
  Nowhere,  // allocated and never touched: no page holds data, bringing it in moves nothing
  Device,
  Host,
};

struct Extent {
  std::uint64_t bytes = 0;  // 0: the id is not in use
  std::uint64_t touched_at =
      0;  // ordinal of the last launch that named it, as the engine counts; at first, of the last before it
  std::uint64_t allocated_at = 0;  // ordinal of the last launch before the guest got it
  std::uint64_t iteration = 0;     // ordinal of the last iteration that counted it into its working set
  // Neighbours among the extents on the device: in the order of last touches, or, of the retired ones, of retirement.
  ExtentId older = kNoExtent;
  ExtentId newer = kNoExtent;
  Place place = Place::Nowhere;
  bool is_retired = false;
  bool is_mixed = false;  // part of it may be on the device, although its place is not
};

class Extents {
 public:
  // `id` must not be contained.
  void add(ExtentId id, std::uint64_t bytes, std::uint64_t launch);
  void remove(ExtentId id) noexcept;  // retired or not

  [[nodiscard]] bool contains(ExtentId id) const noexcept {
    return id < extents_.size() && extents_[id].bytes != 0 && !extents_[id].is_retired;
  }
  [[nodiscard]] bool is_retired(ExtentId id) const noexcept { return id < extents_.size() && extents_[id].is_retired; }
  [[nodiscard]] const Extent& operator[](ExtentId id) const noexcept { return extents_[id]; }

  // The end of the order where victims are found, or kNoExtent; follow Extent::newer from there.
  [[nodiscard]] ExtentId least_recently_touched() const noexcept { return live_.oldest; }
  // The same among retired extents on the device.
  [[nodiscard]] ExtentId least_recently_retired() const noexcept { return retired_.oldest; }

  // `id` must be contained in all of these; in move_to_host() it may be retired as well.
  void touch(ExtentId id, std::uint64_t launch) noexcept {
    extents_[id].touched_at = launch;
    if (extents_[id].place == Place::Device && id != live_.newest) {
      unlink(id);
      link_newest(id);
    }
  }
  void mark_counted(ExtentId id, std::uint64_t iteration) noexcept { extents_[id].iteration = iteration; }
  void move_to_device(ExtentId id) noexcept;  // it becomes the most recently touched
  void move_to_host(ExtentId id) noexcept;
  void retire(ExtentId id) noexcept;

  // `id` must be retired.
  void revive(ExtentId id, std::uint64_t launch) noexcept;
  void discard(ExtentId id) noexcept;  // its contents are dropped
  void mark_mixed(ExtentId id) noexcept { extents_[id].is_mixed = true; }
  // A retired extent that has `place` from the start.
  void add_retired(ExtentId id, std::uint64_t bytes, Place place);

  // On the device: retired ones included.
  [[nodiscard]] std::uint64_t resident_bytes() const noexcept { return resident_bytes_; }
  [[nodiscard]] std::uint64_t retired_resident_bytes() const noexcept { return retired_resident_bytes_; }
  // Allocated: retired ones not.
  [[nodiscard]] std::uint64_t footprint_bytes() const noexcept { return footprint_bytes_; }

 private:
  struct Order {
    ExtentId oldest = kNoExtent;
    ExtentId newest = kNoExtent;
  };
  [[nodiscard]] Order& order_of(const Extent& extent) noexcept { return extent.is_retired ? retired_ : live_; }

  void link_newest(ExtentId id) noexcept {
    Order& order = order_of(extents_[id]);
    extents_[id].older = order.newest;
    extents_[id].newer = kNoExtent;
    (order.newest == kNoExtent ? order.oldest : extents_[order.newest].newer) = id;
    order.newest = id;
  }
  void unlink(ExtentId id) noexcept {
    const Extent& extent = extents_[id];
    Order& order = order_of(extent);
    (extent.older == kNoExtent ? order.oldest : extents_[extent.older].newer) = extent.newer;
    (extent.newer == kNoExtent ? order.newest : extents_[extent.newer].older) = extent.older;
  }
  void leave_device(ExtentId id, Place place) noexcept;

  std::vector<Extent> extents_;
  Order live_;
  Order retired_;
  std::uint64_t resident_bytes_ = 0;
  std::uint64_t retired_resident_bytes_ = 0;
  std::uint64_t footprint_bytes_ = 0;
};

}  // namespace hmshim::policy
