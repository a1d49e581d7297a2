// What the engine believes about every live extent: size, place, and the order of last touches. Policies read it, only
// the engine writes it. The order is a list threaded through the table, so a touch is O(1) and allocates nothing.
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
  std::uint64_t bytes = 0;        // 0: the id is not in use
  std::uint64_t fingerprint = 0;  // its share in the signature of the launches that touch it
  std::uint64_t touched_at =
      0;  // ordinal of the last launch that named it, as the engine counts; at first, of the last before it
  std::uint64_t iteration = 0;  // ordinal of the last iteration that counted it into its working set
  ExtentId older = kNoExtent;   // neighbours in the order of last touches, among extents on the device
  ExtentId newer = kNoExtent;
  Place place = Place::Nowhere;
};

class Extents {
 public:
  // `id` must not be contained.
  void add(ExtentId id, std::uint64_t bytes, std::uint64_t fingerprint, std::uint64_t launch);
  void remove(ExtentId id) noexcept;

  [[nodiscard]] bool contains(ExtentId id) const noexcept { return id < extents_.size() && extents_[id].bytes != 0; }
  [[nodiscard]] const Extent& operator[](ExtentId id) const noexcept { return extents_[id]; }

  // The end of the order where victims are found, or kNoExtent; follow Extent::newer from there.
  [[nodiscard]] ExtentId least_recently_touched() const noexcept { return oldest_; }

  // `id` must be contained in all of these.
  void touch(ExtentId id, std::uint64_t launch) noexcept {
    extents_[id].touched_at = launch;
    if (extents_[id].place == Place::Device && id != newest_) {
      unlink(id);
      link_newest(id);
    }
  }
  void mark_counted(ExtentId id, std::uint64_t iteration) noexcept { extents_[id].iteration = iteration; }
  void move_to_device(ExtentId id) noexcept;  // it becomes the most recently touched
  void move_to_host(ExtentId id) noexcept;

  [[nodiscard]] std::uint64_t resident_bytes() const noexcept { return resident_bytes_; }
  [[nodiscard]] std::uint64_t footprint_bytes() const noexcept { return footprint_bytes_; }

 private:
  void link_newest(ExtentId id) noexcept {
    extents_[id].older = newest_;
    extents_[id].newer = kNoExtent;
    (newest_ == kNoExtent ? oldest_ : extents_[newest_].newer) = id;
    newest_ = id;
  }
  void unlink(ExtentId id) noexcept {
    const Extent& extent = extents_[id];
    (extent.older == kNoExtent ? oldest_ : extents_[extent.older].newer) = extent.newer;
    (extent.newer == kNoExtent ? newest_ : extents_[extent.newer].older) = extent.older;
  }

  std::vector<Extent> extents_;
  ExtentId oldest_ = kNoExtent;
  ExtentId newest_ = kNoExtent;
  std::uint64_t resident_bytes_ = 0;
  std::uint64_t footprint_bytes_ = 0;
};

}  // namespace hmshim::policy
