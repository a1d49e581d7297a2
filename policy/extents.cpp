#include "policy/extents.hpp"

namespace hmshim::policy {

void Extents::add(ExtentId id, std::uint64_t bytes, std::uint64_t launch) {
  if (id >= extents_.size()) extents_.resize(std::size_t{id} + 1);
  extents_[id] = {.bytes = bytes, .touched_at = launch, .allocated_at = launch};
  footprint_bytes_ += bytes;
}

void Extents::remove(ExtentId id) noexcept {
  if (!contains(id) && !is_retired(id)) return;
  Extent& extent = extents_[id];
  leave_device(id, Place::Nowhere);
  if (!extent.is_retired) footprint_bytes_ -= extent.bytes;
  extent = {};
}

void Extents::retire(ExtentId id) noexcept {
  Extent& extent = extents_[id];
  const bool is_resident = extent.place == Place::Device;
  if (is_resident) unlink(id);
  extent.is_retired = true;
  if (is_resident) {
    link_newest(id);
    retired_resident_bytes_ += extent.bytes;
  }
  footprint_bytes_ -= extent.bytes;
}

void Extents::revive(ExtentId id, std::uint64_t launch) noexcept {
  Extent& extent = extents_[id];
  const bool is_resident = extent.place == Place::Device;
  if (is_resident) unlink(id);
  extent = {.bytes = extent.bytes, .touched_at = launch, .allocated_at = launch, .place = extent.place};
  if (is_resident) {
    link_newest(id);
    retired_resident_bytes_ -= extent.bytes;
  }
  footprint_bytes_ += extent.bytes;
}

void Extents::discard(ExtentId id) noexcept {
  leave_device(id, Place::Nowhere);
  extents_[id].place = Place::Nowhere;
}

void Extents::add_retired(ExtentId id, std::uint64_t bytes, Place place) {
  add(id, bytes, 0);
  retire(id);
  if (place == Place::Device) {
    move_to_device(id);
  } else {
    extents_[id].place = place;
  }
}

void Extents::move_to_device(ExtentId id) noexcept {
  Extent& extent = extents_[id];
  if (extent.place == Place::Device) return;
  extent.place = Place::Device;
  link_newest(id);
  resident_bytes_ += extent.bytes;
  if (extent.is_retired) retired_resident_bytes_ += extent.bytes;
}

void Extents::move_to_host(ExtentId id) noexcept { leave_device(id, Place::Host); }

void Extents::leave_device(ExtentId id, Place place) noexcept {
  Extent& extent = extents_[id];
  if (extent.place != Place::Device) return;
  extent.place = place;
  unlink(id);
  resident_bytes_ -= extent.bytes;
  if (extent.is_retired) retired_resident_bytes_ -= extent.bytes;
}

}  // namespace hmshim::policy
