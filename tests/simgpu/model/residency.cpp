#include "tests/simgpu/model/residency.hpp"

#include <algorithm>

#include "tests/simgpu/model/memory.hpp"

namespace hmshim::simgpu::machine {
namespace {

constexpr std::uint32_t kRegionsPerBlock = kBlockBytes / kRegionBytes;
static_assert(kRegionsPerBlock == 32, "RegionMask holds one block");

/// Bits [first, last).
RegionMask mask_between(std::uint64_t first, std::uint64_t last) {
  const std::uint64_t below_last = last >= 64 ? ~0ULL : (1ULL << last) - 1;
  const std::uint64_t below_first = (1ULL << first) - 1;
  return first >= last ? 0 : static_cast<RegionMask>(below_last & ~below_first);
}

std::uint32_t count(RegionMask regions) { return static_cast<std::uint32_t>(std::popcount(regions)); }

// By runs of regions: asking the host what exists is a system call.
void poison_regions(const Block& block, RegionMask regions) {
  while (regions != 0) {
    const auto first = static_cast<std::uint32_t>(std::countr_zero(regions));
    const auto length = static_cast<std::uint32_t>(std::countr_one(regions >> first));
    const RegionMask run = mask_between(first, first + length);
    AddressSpace::poison(block.address + first * kRegionBytes, block.bytes_of(run));
    regions &= ~run;
  }
}

}  // namespace

RegionMask Block::overlapping(Range range) const {
  const std::uint64_t begin = std::max(range.address, address) - address;
  const std::uint64_t end = std::min(range.address + range.bytes, address + bytes) - address;
  return mask_between(begin / kRegionBytes, (end + kRegionBytes - 1) / kRegionBytes);
}

RegionMask Block::inside(Range range) const {
  const std::uint64_t begin = std::max(range.address, address) - address;
  const std::uint64_t end = std::min(range.address + range.bytes, address + bytes) - address;
  const std::uint64_t last = end == bytes ? block_regions() : end / kRegionBytes;
  return mask_between((begin + kRegionBytes - 1) / kRegionBytes, last);
}

std::uint64_t Block::bytes_of(RegionMask regions) const {
  const std::uint64_t last_region = block_regions() - 1;
  const std::uint64_t missing_tail = block_regions() * kRegionBytes - bytes;
  return count(regions) * kRegionBytes - ((regions >> last_region) & 1U) * missing_tail;
}

Residency::Residency(const Profile& profile, int device_count)
    : profile_(&profile),
      total_chunks_(profile.capacity_bytes / kBlockBytes),
      devices_(static_cast<std::size_t>(device_count), Device(profile)) {
  for (Device& device : devices_) device.free_chunks = total_chunks_;
}

// ---- blocks ----

void Residency::add(const Allocation& allocation) {
  std::vector<Block> blocks;
  blocks.reserve((allocation.bytes + kBlockBytes - 1) / kBlockBytes);
  for (std::uint64_t offset = 0; offset < allocation.bytes; offset += kBlockBytes) {
    Block& block = blocks.emplace_back();
    block.address = allocation.address + offset;
    // A VA range is a whole number of 4 KiB pages, whatever the guest asked for.
    const std::uint64_t pages = (std::min(allocation.bytes - offset, kBlockBytes) + kPageBytes - 1) / kPageBytes;
    block.bytes = pages * kPageBytes;
    block.all = mask_between(0, (block.bytes + kRegionBytes - 1) / kRegionBytes);
    block.is_small = block.bytes < kBlockBytes;
    block.devices.resize(devices_.size());
  }
  ranges_.emplace(allocation.address, std::move(blocks));
}

void Residency::remove(const Allocation& allocation) {
  const auto range = ranges_.find(allocation.address);
  for (Block& block : range->second) {
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      set_resident(static_cast<int>(device), block, 0);
      if (!block.devices[device].has_chunk) continue;
      detach_chunk(static_cast<int>(device), block);
      ++devices_[device].free_chunks;
    }
    host_bytes_ -= block.bytes_of(block.host_backed);
  }
  ranges_.erase(range);
}

Block* Residency::find(std::uint64_t address) {
  auto range = ranges_.upper_bound(address);
  if (range == ranges_.begin()) return nullptr;
  auto& [begin, blocks] = *std::prev(range);
  const std::uint64_t index = (address - begin) / kBlockBytes;
  return index < blocks.size() ? &blocks[index] : nullptr;
}

void Residency::set_resident(int device, Block& block, RegionMask regions) {
  BlockOnDevice& on = block.devices[static_cast<std::size_t>(device)];
  DeviceStats& stats = device_of(device).stats;
  stats.resident_bytes += block.bytes_of(regions & ~on.resident);
  stats.resident_bytes -= block.bytes_of(on.resident & ~regions);
  stats.peak_resident_bytes = std::max(stats.peak_resident_bytes, stats.resident_bytes);
  on.resident = regions;
}

// ---- chunks ----

void Residency::attach_chunk(int device, Block& block) {
  BlockOnDevice& on = block.devices[static_cast<std::size_t>(device)];
  on.has_chunk = true;
  on.list = ChunkList::kUsed;
  auto& used = device_of(device).lists[static_cast<std::size_t>(ChunkList::kUsed)];
  on.position = used.insert(used.end(), &block);
}

void Residency::detach_chunk(int device, Block& block) {
  BlockOnDevice& on = block.devices[static_cast<std::size_t>(device)];
  device_of(device).lists[static_cast<std::size_t>(on.list)].erase(on.position);
  on.has_chunk = false;
}

void Residency::relist(int device, Block& block, bool was_migrated) {
  BlockOnDevice& on = block.devices[static_cast<std::size_t>(device)];
  if (!on.has_chunk) return;
  ChunkList list = ChunkList::kUsed;
  if (on.resident == 0) {
    list = ChunkList::kUnused;
  } else if (!block.is_small && on.resident == block.all && block.discarded == block.all) {
    list = ChunkList::kDiscarded;  // only when every page of a full block is discarded (uvm.md B7)
  }
  if (list == on.list && (!was_migrated || block.is_small)) return;
  auto& lists = device_of(device).lists;
  auto& target = lists[static_cast<std::size_t>(list)];
  target.splice(target.end(), lists[static_cast<std::size_t>(on.list)], on.position);
  on.list = list;
}

Move Residency::acquire_chunk(int device, TimeNs now_ns, bool* evicted) {
  Device& on = device_of(device);
  if (on.free_chunks > 0) {
    --on.free_chunks;
    return {Status::kOk, now_ns};
  }
  auto& unused = on.lists[static_cast<std::size_t>(ChunkList::kUnused)];
  if (!unused.empty()) {
    Block& victim = *unused.front();
    detach_chunk(device, victim);
    ++on.stats.stolen_unused_chunks;
    // The copy that demoted the victim may still be reading the chunk.
    return {Status::kOk, std::max(now_ns, victim.host_ready_at_ns) + profile_->steal_unused_ns};
  }
  for (const ChunkList list : {ChunkList::kDiscarded, ChunkList::kUsed}) {
    auto& victims = on.lists[static_cast<std::size_t>(list)];
    if (victims.empty()) continue;
    *evicted = true;
    return evict(device, *victims.front(), now_ns);
  }
  return {Status::kOutOfMemory, now_ns};
}

Move Residency::evict(int device, Block& victim, TimeNs now_ns) {
  BlockOnDevice& on = victim.devices[static_cast<std::size_t>(device)];
  RegionMask elsewhere = victim.on_host;
  for (std::size_t other = 0; other < devices_.size(); ++other) {
    if (static_cast<int>(other) != device) elsewhere |= victim.devices[other].resident;
  }
  // Bytes that exist here only go to the host; the driver allocates host pages for discarded ones too (hardware_truths
  // 8).
  const RegionMask leaving = on.resident & ~elsewhere;
  const RegionMask lost = on.resident & victim.discarded;
  const bool needs_host_pages = (leaving & ~victim.host_backed) != 0;
  if (const Status status = charge_host(victim, leaving); status != Status::kOk) return {status, now_ns};

  DeviceStats& stats = device_of(device).stats;
  ++stats.evicted_blocks;
  stats.dropped_bytes += victim.bytes_of(lost);
  poison_regions(victim, lost);
  // Host pages are allocated, zeroed and mapped for the device as in a first demote; only the CPU gets no mapping.
  const TimeNs pages_ns = needs_host_pages ? profile_->demote_block_first_ns - profile_->demote_block_later_ns : 0;
  const TimeNs unmapped_ns = std::max(now_ns, on.ready_at_ns) + profile_->evict_block_ns + pages_ns;
  const TimeNs gone_ns = copy(device, Direction::kDeviceToHost, victim.bytes_of(leaving & ~lost), unmapped_ns,
                              Cause::kEviction, profile_->eviction_duplex);
  victim.on_host |= leaving;
  victim.host_ready_at_ns = std::max(victim.host_ready_at_ns, gone_ns);
  set_resident(device, victim, 0);
  detach_chunk(device, victim);
  on.is_remote_mapped = profile_->access_counter_threshold > 0;  // uvm_perf_map_remote_on_eviction
  return {Status::kOk, gone_ns};
}

Move Residency::take_device_chunks(int device, std::uint64_t chunks, TimeNs now_ns) {
  Device& on = device_of(device);
  std::uint64_t attainable = on.free_chunks;
  for (const auto& list : on.lists) attainable += list.size();
  if (chunks > attainable) return {Status::kOutOfMemory, now_ns};
  Move all{Status::kOk, now_ns};
  for (std::uint64_t taken = 0; taken < chunks; ++taken) {
    bool evicted = false;
    const Move one = acquire_chunk(device, now_ns, &evicted);
    if (one.status != Status::kOk) {
      on.free_chunks += taken;
      return one;
    }
    all.ready_at_ns = std::max(all.ready_at_ns, one.ready_at_ns);
  }
  return all;
}

void Residency::return_device_chunks(int device, std::uint64_t chunks) { device_of(device).free_chunks += chunks; }

// ---- host pages ----

Status Residency::charge_host(Block& block, RegionMask regions) {
  const RegionMask fresh = regions & ~block.host_backed;
  const std::uint64_t bytes = block.bytes_of(fresh);
  if (host_bytes_ + bytes > profile_->host_ram_bytes) return Status::kOutOfMemory;
  host_bytes_ += bytes;
  peak_host_bytes_ = std::max(peak_host_bytes_, host_bytes_);
  block.host_backed |= fresh;
  return Status::kOk;
}

Status Residency::populate_on_host(Block& block, RegionMask regions) {
  const RegionMask fresh = regions & ~block.populated;
  if (const Status status = charge_host(block, fresh); status != Status::kOk) return status;
  block.populated |= fresh;
  block.on_host |= fresh;
  return Status::kOk;
}

Status Residency::observe_first_touch(Block& block) {
  if (block.populated != 0) return Status::kOk;
  return populate_on_host(block, AddressSpace::regions_in_core(block.address, block.bytes));
}

// ---- access and migration ----

bool Residency::has_copy_elsewhere(const Block& block, int device, RegionMask regions) const {
  RegionMask copies = block.on_host;
  for (std::size_t other = 0; other < devices_.size(); ++other) {
    if (static_cast<int>(other) != device) copies |= block.devices[other].resident;
  }
  return (copies & regions & block.devices[static_cast<std::size_t>(device)].resident) != 0;
}

AccessNeed Residency::need_of(const Block& block, int device, RegionMask regions, AccessKind kind) const {
  const BlockOnDevice& on = block.devices[static_cast<std::size_t>(device)];
  AccessNeed need;
  const RegionMask absent = regions & ~on.resident;
  // Policies of uvm.md B9. Read duplication comes first: it copies whatever the other advice says.
  const bool duplicates = block.is_read_mostly && kind == AccessKind::kRead;
  if (!duplicates && block.preferred == kHost) {
    need.remote = absent & (block.on_host | ~block.populated);
  } else if (!duplicates && on.is_accessed_by && block.preferred != device) {
    need.remote = absent & block.on_host;
  } else if (!duplicates && on.is_remote_mapped) {
    need.remote = absent & block.on_host;
  }
  // A discarded page is unmapped: touching it faults although its chunk is still here (hardware_truths 8).
  need.fault = (absent & ~need.remote) | (regions & on.resident & block.discarded);
  need.is_collapse = block.is_read_mostly && kind != AccessKind::kRead && has_copy_elsewhere(block, device, regions);
  return need;
}

Thrashing::Hint Residency::judge_fault(Block& block, Location requester, TimeNs now_ns) {
  const Thrashing::Hint hint =
      block.thrashing.on_fault(requester, block.preferred, now_ns, profile_->thrashing_lapse_ns);
  if (requester == kHost) return hint;
  DeviceStats& stats = device_of(requester).stats;
  if (hint.answer == Thrashing::Answer::kThrottle) ++stats.throttled_faults;
  if (hint.answer == Thrashing::Answer::kPin && hint.pinned != requester) {
    block.devices[static_cast<std::size_t>(requester)].is_remote_mapped = true;
    ++stats.remote_pins;
  }
  return hint;
}

void Residency::expire_pin(Block& block, TimeNs now_ns) {
  if (block.thrashing.ends_pin(now_ns)) unmap_remote(block);
}

void Residency::unmap_remote(Block& block) {
  for (BlockOnDevice& on : block.devices) {
    on.is_remote_mapped = false;
    on.remote_accesses = 0;
  }
}

Status Residency::count_remote_access(Block& block, int device, std::uint64_t bytes, TimeNs now_ns) {
  constexpr std::uint64_t kAccessBytes = 128;  // what a warp reads at once: a cache line
  if (profile_->access_counter_threshold == 0 || block.preferred == kHost) return Status::kOk;
  BlockOnDevice& on = block.devices[static_cast<std::size_t>(device)];
  on.remote_accesses += bytes / kAccessBytes;
  if (on.remote_accesses < profile_->access_counter_threshold) return Status::kOk;
  return move_to_device(block, device, block.on_host, AccessKind::kReadWrite, Cause::kAccessCounters, now_ns).status;
}

RegionMask Residency::expand_faults(const Block& block, int device, RegionMask faulted) {
  if (block.preferred == device && block.populated == 0) return block.all;
  if (block.preferred != kNowhere && block.preferred != device) return faulted;
  const RegionMask present = block.devices[static_cast<std::size_t>(device)].resident | faulted;
  RegionMask grown = faulted;
  for (std::uint32_t region = 0; region < kRegionsPerBlock; ++region) {
    if (((faulted >> region) & 1U) == 0) continue;
    for (std::uint32_t size = 2; size <= kRegionsPerBlock; size *= 2) {
      const std::uint32_t first = region / size * size;
      const RegionMask subtree = mask_between(first, first + size) & block.all;
      if (count(present & subtree) * 100 > count(subtree) * 51) grown |= subtree;
    }
  }
  return grown;
}

TimeNs Residency::copy(int device, Direction direction, std::uint64_t bytes, TimeNs earliest_ns, Cause cause,
                       Duplex duplex) {
  DeviceStats& stats = device_of(device).stats;
  auto& counted = direction == Direction::kHostToDevice ? stats.h2d_bytes : stats.d2h_bytes;
  counted[static_cast<std::size_t>(cause)] += bytes;
  return device_of(device).link.schedule(direction, bytes, bytes, earliest_ns, duplex);
}

void Residency::drop_other_copies(Block& block, Location keeper, RegionMask regions) {
  if (keeper != kHost) block.on_host &= ~regions;
  for (std::size_t other = 0; other < devices_.size(); ++other) {
    const int device = static_cast<int>(other);
    if (device == keeper || (block.devices[other].resident & regions) == 0) continue;
    set_resident(device, block, block.devices[other].resident & ~regions);
    relist(device, block, false);
  }
}

Move Residency::move_to_device(Block& block, int device, RegionMask regions, AccessKind kind, Cause cause,
                               TimeNs now_ns) {
  if (const Status status = observe_first_touch(block); status != Status::kOk) return {status, now_ns};
  BlockOnDevice& on = block.devices[static_cast<std::size_t>(device)];
  Move move{Status::kOk, std::max(now_ns, on.ready_at_ns)};
  bool evicted = false;
  if (!on.has_chunk) {
    const Move chunk = acquire_chunk(device, now_ns, &evicted);
    if (chunk.status != Status::kOk) return chunk;
    attach_chunk(device, block);
    move.ready_at_ns = std::max(move.ready_at_ns, chunk.ready_at_ns);
  }

  const RegionMask absent = regions & ~on.resident;
  poison_regions(block, absent & block.discarded);
  RegionMask content = absent & block.populated & ~block.discarded;
  if (cause == Cause::kUser) block.thrashing.reset();
  if (content != 0 && cause != Cause::kUser && !block.is_read_mostly)
    block.thrashing.migrated(device, now_ns, profile_->thrashing_lapse_ns);
  on.is_remote_mapped = false;
  on.remote_accesses = 0;
  const Duplex duplex = evicted ? profile_->eviction_duplex : profile_->planned_duplex;
  if (const RegionMask part = content & block.on_host; part != 0) {
    const TimeNs earliest = std::max(move.ready_at_ns, block.host_ready_at_ns);
    move.ready_at_ns = copy(device, Direction::kHostToDevice, block.bytes_of(part), earliest, cause, duplex);
    content &= ~part;
  }
  // Between devices without a direct link: through the host, counted on both links.
  for (std::size_t other = 0; other < devices_.size() && content != 0; ++other) {
    const RegionMask part = content & block.devices[other].resident;
    if (part == 0) continue;
    const TimeNs earliest = std::max(move.ready_at_ns, block.devices[other].ready_at_ns);
    const std::uint64_t bytes = block.bytes_of(part);
    const TimeNs left = copy(static_cast<int>(other), Direction::kDeviceToHost, bytes, earliest, cause, duplex);
    move.ready_at_ns = copy(device, Direction::kHostToDevice, bytes, left, cause, duplex);
    content &= ~part;
  }

  set_resident(device, block, on.resident | regions);
  block.populated |= regions;
  if (!block.is_read_mostly || kind != AccessKind::kRead) drop_other_copies(block, device, regions);
  on.ready_at_ns = move.ready_at_ns;
  relist(device, block, true);
  return move;
}

Move Residency::move_to_host(Block& block, RegionMask regions, bool keeps_duplicates, Cause cause, TimeNs now_ns) {
  if (const Status status = charge_host(block, regions); status != Status::kOk) return {status, now_ns};
  Move move{Status::kOk, std::max(now_ns, block.host_ready_at_ns)};
  const RegionMask absent = regions & ~block.on_host;
  poison_regions(block, absent & block.discarded);
  RegionMask content = absent & block.populated & ~block.discarded;
  if (cause == Cause::kUser) {
    block.thrashing.reset();
    unmap_remote(block);
  } else if (content != 0 && !block.is_read_mostly) {
    block.thrashing.migrated(kHost, now_ns, profile_->thrashing_lapse_ns);
  }
  for (std::size_t other = 0; other < devices_.size() && content != 0; ++other) {
    const RegionMask part = content & block.devices[other].resident;
    if (part == 0) continue;
    const TimeNs earliest = std::max(move.ready_at_ns, block.devices[other].ready_at_ns);
    move.ready_at_ns = copy(static_cast<int>(other), Direction::kDeviceToHost, block.bytes_of(part), earliest, cause,
                            profile_->planned_duplex);
    content &= ~part;
  }
  block.on_host |= regions;
  block.populated |= regions;
  block.host_ready_at_ns = move.ready_at_ns;
  if (!keeps_duplicates) drop_other_copies(block, kHost, regions);
  return move;
}

// ---- discard and advice ----

void Residency::use_discarded(Block& block, int device, RegionMask regions, AccessKind kind) {
  const RegionMask hit = regions & block.discarded;
  DeviceStats& stats = device_of(device).stats;
  if (kind != AccessKind::kWrite) {
    poison_regions(block, hit);
    stats.reads_after_discard += count(hit);
  }
  if (kind != AccessKind::kRead) {
    stats.writes_after_discard += count(hit);
    block.discarded &= ~hit;
    for (std::size_t other = 0; other < devices_.size(); ++other) relist(static_cast<int>(other), block, false);
  }
}

void Residency::revive_discarded(Block& block, RegionMask regions) {
  poison_regions(block, regions & block.discarded);
  block.discarded &= ~regions;
  for (std::size_t other = 0; other < devices_.size(); ++other) relist(static_cast<int>(other), block, false);
}

void Residency::discard(Block& block, int device, RegionMask regions) {
  const RegionMask fresh = regions & block.populated & ~block.discarded;
  block.discarded |= fresh;
  device_of(device).stats.discarded_bytes += block.bytes_of(fresh);
  for (std::size_t other = 0; other < devices_.size(); ++other) relist(static_cast<int>(other), block, false);
}

void Residency::unset_read_mostly(Block& block) {
  block.is_read_mostly = false;
  // One copy survives: the preferred device's, else the host's, at no bytes copied (hardware_truths 7).
  if (block.preferred >= 0) {
    drop_other_copies(block, block.preferred, block.devices[static_cast<std::size_t>(block.preferred)].resident);
  }
  drop_other_copies(block, kHost, block.on_host);
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    drop_other_copies(block, static_cast<int>(device), block.devices[device].resident);
  }
}

void Residency::advise(Block& block, Advice advice, Location where) {
  switch (advice) {
    case Advice::kSetReadMostly:
      block.is_read_mostly = true;
      return;
    case Advice::kUnsetReadMostly:
      unset_read_mostly(block);
      return;
    case Advice::kSetPreferredLocation:
      block.preferred = where;
      return;
    case Advice::kUnsetPreferredLocation:
      block.preferred = kNowhere;
      return;
    case Advice::kSetAccessedBy:
    case Advice::kUnsetAccessedBy:
      // The host maps what it can reach anyway: accessed-by the host changes nothing here.
      if (where >= 0) {
        block.devices[static_cast<std::size_t>(where)].is_accessed_by = advice == Advice::kSetAccessedBy;
      }
      return;
  }
}

}  // namespace hmshim::simgpu::machine
