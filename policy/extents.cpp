#include "policy/extents.hpp"

namespace hmshim::policy {

void Extents::add(ExtentId id, std::uint64_t bytes, std::uint64_t fingerprint, std::uint64_t launch) {
  if (id >= extents_.size()) extents_.resize(std::size_t{id} + 1);
  extents_[id] = {.bytes = bytes, .fingerprint = fingerprint, .touched_at = launch};
  footprint_bytes_ += bytes;
}

void Extents::remove(ExtentId id) noexcept {
  if (!contains(id)) return;
  Extent& extent = extents_[id];
  if (extent.place == Place::Device) {
    unlink(id);
    resident_bytes_ -= extent.bytes;
  }
  footprint_bytes_ -= extent.bytes;
  extent = {};
}

void Extents::move_to_device(ExtentId id) noexcept {
  Extent& extent = extents_[id];
  if (extent.place == Place::Device) return;
  extent.place = Place::Device;
  link_newest(id);
  resident_bytes_ += extent.bytes;
}

void Extents::move_to_host(ExtentId id) noexcept {
  Extent& extent = extents_[id];
  if (extent.place != Place::Device) return;
  extent.place = Place::Host;
  unlink(id);
  resident_bytes_ -= extent.bytes;
}

}  // namespace hmshim::policy
