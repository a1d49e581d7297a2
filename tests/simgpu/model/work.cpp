#include "tests/simgpu/model/work.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace hmshim::simgpu::machine {
namespace {

/// Copies take turns on the link in pieces of this size, as the channels of different streams do.
constexpr std::uint64_t kPieceBytes = 8U << 20;

/// How often something that a lock keeps out tries again: below every cost of a profile that matters.
constexpr TimeNs kLockRetryNs = 1'000;

TimeNs time_of(double bytes, double gbps) { return std::llround(bytes / gbps); }

std::uint64_t block_end(std::uint64_t address) { return address / kBlockBytes * kBlockBytes + kBlockBytes; }

}  // namespace

// ---- kernels ----

KernelWork::KernelWork(Machine& machine, int device, std::vector<Access> accesses, TimeNs duration_ns)
    : machine_(&machine), device_(device), accesses_(std::move(accesses)), duration_ns_(duration_ns) {
  if (duration_ns_ == kDurationFromBytes) {
    double bytes = 0;
    for (const Access& access : accesses_) {
      bytes += static_cast<double>(access.bytes) * (access.kind == AccessKind::kReadWrite ? 2 : 1);
    }
    duration_ns_ = time_of(bytes, machine.profile.hbm_gbps);
  }
}

std::optional<TimeNs> KernelWork::step(TimeNs now_ns) {
  if (machine_->status_of(device_) != Status::kOk) return std::nullopt;
  DeviceStats& stats = machine_->residency.stats(device_);
  switch (phase_) {
    case Phase::kStarting:
      ++stats.kernels;
      phase_ = Phase::kWalking;
      walk_began_ns_ = now_ns;
      break;
    case Phase::kComputing:
      if (!lost_blocks_since(compute_began_ns_)) return std::nullopt;
      // Somebody demoted what this kernel uses: on hardware it faults those blocks back in (hardware_truths 14).
      phase_ = Phase::kWalkingAgain;
      walk_began_ns_ = now_ns;
      cursor_ = {};
      break;
    case Phase::kWalking:
    case Phase::kWalkingAgain:
      break;
    case Phase::kDone:
      return std::nullopt;
  }

  remote_until_ns_ = std::max(remote_until_ns_, now_ns);
  retry_at_ns_ = machine_->residency.fault_service_free_at(device_);
  if (!machine_->va_space.can_read()) retry_at_ns_ = std::max(retry_at_ns_, now_ns + kLockRetryNs);
  const std::vector<Fault> group = collect(now_ns, retry_at_ns_ <= now_ns);
  if (machine_->status_of(device_) != Status::kOk) return std::nullopt;
  if (!group.empty()) return serve(group, now_ns);
  if (cursor_.access < accesses_.size()) return retry_at_ns_;

  stats.stall_ns += remote_until_ns_ - walk_began_ns_;
  if (phase_ == Phase::kWalkingAgain) {
    phase_ = Phase::kDone;
    return remote_until_ns_;
  }
  phase_ = Phase::kComputing;
  compute_began_ns_ = remote_until_ns_;
  stats.kernel_busy_ns += duration_ns_;
  return compute_began_ns_ + duration_ns_;
}

std::vector<KernelWork::Fault> KernelWork::collect(TimeNs now_ns, bool can_fault) {
  Residency& residency = machine_->residency;
  std::vector<Fault> group;
  std::uint32_t faults = 0;
  for (; cursor_.access < accesses_.size(); ++cursor_.access, cursor_.offset = 0) {
    const Access& access = accesses_[cursor_.access];
    if (!AddressSpace::is_ours(access.address)) {
      access_remotely(access.bytes, access.kind);
      continue;
    }
    const Allocation* allocation = machine_->memory.find(access.address, access.bytes);
    if (allocation == nullptr) {
      die(Status::kIllegalAddress);
      return {};
    }
    if (allocation->kind == MemoryKind::kDevice) continue;
    while (cursor_.offset < access.bytes) {
      const std::uint64_t address = access.address + cursor_.offset;
      const std::uint64_t part = std::min(access.bytes - cursor_.offset, block_end(address) - address);
      Block& block = *residency.find(address);
      if (phase_ == Phase::kWalking || block.demoted_at_ns >= compute_began_ns_) {
        if (residency.observe_first_touch(block) != Status::kOk) {
          die(Status::kFaultOutOfMemory);
          return {};
        }
        const RegionMask regions = block.overlapping({address, part});
        residency.expire_pin(block, now_ns);
        AccessNeed need = residency.need_of(block, device_, regions, access.kind);
        // A block on its way here is not mapped yet: an access faults and waits for it.
        const bool is_arriving = block.devices[static_cast<std::size_t>(device_)].ready_at_ns > now_ns;
        if (need.is_fault() || is_arriving) {
          const auto weight = std::max(1U, static_cast<std::uint32_t>(std::popcount(need.fault)));
          const bool is_full = faults + weight > machine_->profile.fault_batch_faults && !group.empty();
          if (!can_fault || is_full) return group;
          const Thrashing::Hint hint =
              need.is_fault() ? residency.judge_fault(block, device_, now_ns) : Thrashing::Hint{};
          if (hint.answer == Thrashing::Answer::kThrottle) {
            retry_at_ns_ = hint.until_ns;
            return group;
          }
          if (hint.answer == Thrashing::Answer::kPin) need = residency.need_of(block, device_, regions, access.kind);
          if (need.is_fault() || is_arriving) {
            faults += weight;
            group.push_back({address, need, access.kind});
          }
        }
        if (need.remote != 0) {
          if (residency.populate_on_host(block, need.remote) != Status::kOk) {
            die(Status::kFaultOutOfMemory);
            return {};
          }
          residency.use_discarded(block, device_, need.remote, access.kind);
          const std::uint64_t bytes = std::min(part, block.bytes_of(need.remote));
          access_remotely(bytes, access.kind);
          if (residency.count_remote_access(block, device_, bytes, now_ns) != Status::kOk) {
            die(Status::kFaultOutOfMemory);
            return {};
          }
        }
      }
      cursor_.offset += part;
    }
  }
  return group;
}

TimeNs KernelWork::serve(const std::vector<Fault>& group, TimeNs now_ns) {
  const Profile& profile = machine_->profile;
  Residency& residency = machine_->residency;
  DeviceStats& stats = residency.stats(device_);
  TimeNs service_ns = now_ns + profile.fault_group_ns;
  TimeNs ready_ns = service_ns;
  for (const Fault& fault : group) {
    Block& block = *residency.find(fault.address);
    service_ns += profile.fault_block_ns + (fault.need.is_collapse ? profile.collapse_block_ns : 0);
    residency.use_discarded(block, device_, fault.need.fault, fault.kind);
    RegionMask regions = Residency::expand_faults(block, device_, fault.need.fault);
    if (fault.need.is_collapse) regions |= block.devices[static_cast<std::size_t>(device_)].resident;
    const Move move = residency.move_to_device(block, device_, regions, fault.kind, Cause::kDemand, service_ns);
    if (move.status != Status::kOk) {
      die(Status::kFaultOutOfMemory);
      return service_ns;
    }
    ready_ns = std::max(ready_ns, move.ready_at_ns);
  }
  ++stats.fault_groups;
  stats.faulted_blocks += group.size();
  const TimeNs end_ns = std::max(service_ns, ready_ns);
  residency.fault_service_free_at(device_) = end_ns;
  return end_ns;
}

void KernelWork::access_remotely(std::uint64_t bytes, AccessKind kind) {
  DeviceStats& stats = machine_->residency.stats(device_);
  Link& link = machine_->residency.link(device_);
  const TimeNs begin_ns = remote_until_ns_;
  const auto cause = static_cast<std::size_t>(Cause::kRemote);
  const auto queue = [&](Direction direction) {
    // Many small accesses in flight together reach the bulk rate.
    const TimeNs end_ns = link.schedule(direction, bytes, kBlockBytes, begin_ns, Duplex::kFull);
    remote_until_ns_ = std::max(remote_until_ns_, end_ns);
  };
  if (kind != AccessKind::kWrite) {
    stats.h2d_bytes[cause] += bytes;
    queue(Direction::kHostToDevice);
  }
  if (kind != AccessKind::kRead) {
    stats.d2h_bytes[cause] += bytes;
    queue(Direction::kDeviceToHost);
  }
}

bool KernelWork::lost_blocks_since(TimeNs time_ns) {
  for (const Access& access : accesses_) {
    for (std::uint64_t offset = 0; offset < access.bytes;) {
      const std::uint64_t address = access.address + offset;
      const Block* block = machine_->residency.find(address);
      if (block == nullptr) break;  // device or host memory: never demoted
      if (block->demoted_at_ns >= time_ns) return true;
      offset += block_end(address) - address;
    }
  }
  return false;
}

// ---- copies ----

CopyWork::CopyWork(Machine& machine, int device, std::uint64_t destination, std::optional<std::uint64_t> source,
                   std::uint64_t bytes)
    : machine_(&machine), device_(device), destination_(destination), source_(source), bytes_(bytes) {}

std::optional<TimeNs> CopyWork::step(TimeNs now_ns) {
  if (machine_->status_of(device_) != Status::kOk) return std::nullopt;
  if (located_) {
    const Located piece = *located_;
    located_.reset();
    done_bytes_ += piece.bytes;
    return transfer(piece.to, piece.from, piece.bytes, now_ns);
  }
  if (done_bytes_ == bytes_) return std::nullopt;

  const std::uint64_t to = destination_ + done_bytes_;
  std::uint64_t bytes = std::min(bytes_ - done_bytes_, kPieceBytes);
  if (machine_->residency.find(to) != nullptr) bytes = std::min(bytes, block_end(to) - to);
  if (source_) {
    const std::uint64_t from = *source_ + done_bytes_;
    if (machine_->residency.find(from) != nullptr) bytes = std::min(bytes, block_end(from) - from);
  }
  TimeNs served_ns = now_ns;
  Located piece{.to = kHost, .from = std::nullopt, .bytes = bytes};
  if (source_) piece.from = locate({*source_ + done_bytes_, bytes}, AccessKind::kRead, served_ns);
  piece.to = locate({to, bytes}, AccessKind::kWrite, served_ns);
  located_ = piece;
  return served_ns;
}

Location CopyWork::locate(Range piece, AccessKind kind, TimeNs& free_at_ns) {
  if (!AddressSpace::is_ours(piece.address)) return kHost;
  const Allocation* allocation = machine_->memory.find(piece.address, piece.bytes);
  if (allocation == nullptr) {
    machine_->status_of(device_) = Status::kIllegalAddress;
    return kHost;
  }
  if (allocation->kind == MemoryKind::kDevice) return allocation->device;

  Residency& residency = machine_->residency;
  Block& block = *residency.find(piece.address);
  const RegionMask regions = block.overlapping(piece);
  AccessNeed need;
  Status status = residency.observe_first_touch(block);
  if (status == Status::kOk) {
    need = residency.need_of(block, device_, regions, kind);
    status = residency.populate_on_host(block, need.remote);
  }
  residency.use_discarded(block, device_, regions, kind);
  if (status == Status::kOk && need.is_fault()) {
    // Copy engines cannot replay: each page faults by itself, nothing is prefetched (hardware_truths 4).
    const std::uint64_t faulted_bytes = std::min(block.bytes_of(need.fault), piece.bytes);
    const std::uint64_t pages = need.fault == 0 ? 1 : (faulted_bytes + kPageBytes - 1) / kPageBytes;
    residency.stats(device_).copy_engine_faults += pages;
    TimeNs& service_free_ns = residency.fault_service_free_at(device_);
    const TimeNs begin_ns = std::max(free_at_ns, service_free_ns);
    const TimeNs collapse_ns = need.is_collapse ? machine_->profile.collapse_block_ns : 0;
    const Move move = residency.move_to_device(block, device_, need.fault | (need.is_collapse ? regions : 0), kind,
                                               Cause::kDemand, begin_ns);
    status = move.status;
    free_at_ns =
        std::max(move.ready_at_ns,
                 begin_ns + collapse_ns + static_cast<TimeNs>(pages) * machine_->profile.copy_engine_fault_page_ns);
    service_free_ns = free_at_ns;
  }
  if (status != Status::kOk) {
    machine_->status_of(device_) = Status::kFaultOutOfMemory;
    return kHost;
  }
  if (need.remote != 0) return kHost;
  free_at_ns = std::max(free_at_ns, block.devices[static_cast<std::size_t>(device_)].ready_at_ns);
  return device_;
}

TimeNs CopyWork::transfer(Location to, std::optional<Location> from, std::uint64_t bytes, TimeNs now_ns) {
  const Profile& profile = machine_->profile;
  Residency& residency = machine_->residency;
  const auto cause = static_cast<std::size_t>(Cause::kCopy);
  if (!from) {
    if (to == kHost) return now_ns + time_of(static_cast<double>(bytes), profile.link_d2h_gbps);
    return now_ns + time_of(static_cast<double>(bytes), profile.hbm_gbps);
  }
  if (*from == to) {
    const double gbps = to == kHost ? profile.host_copy_gbps : profile.hbm_gbps / 2;  // read and write
    return now_ns + time_of(static_cast<double>(bytes), gbps);
  }
  TimeNs end_ns = now_ns;
  if (*from != kHost) {
    residency.stats(*from).d2h_bytes[cause] += bytes;
    end_ns = residency.link(*from).schedule(Direction::kDeviceToHost, bytes, bytes_, end_ns, profile.planned_duplex);
  }
  if (to != kHost) {
    residency.stats(to).h2d_bytes[cause] += bytes;
    end_ns = residency.link(to).schedule(Direction::kHostToDevice, bytes, bytes_, end_ns, profile.planned_duplex);
  }
  return end_ns;
}

// ---- prefetch, demote, discard ----

MigrationWork::MigrationWork(Machine& machine, MigrationKind kind, int device, Range range)
    : machine_(&machine), kind_(kind), device_(device), range_(range), passes_left_(1), next_(range.address) {
  // Towards a device the driver walks a range of several blocks twice: copy, then copy again and map (uvm.md B5).
  const bool is_one_block = range.address + range.bytes <= block_end(range.address);
  if (kind == MigrationKind::kPrefetch && !is_one_block) passes_left_ = 2;
}

TimeNs MigrationWork::block_cost(std::uint64_t address) {
  const Profile& profile = machine_->profile;
  if (kind_ == MigrationKind::kDiscard) return profile.discard_block_ns;
  if (kind_ == MigrationKind::kPrefetch) return profile.prefetch_block_ns;
  const Block* block = machine_->residency.find(address);
  if (block == nullptr) return 0;
  const RegionMask moving = block->overlapping(range_) & ~block->on_host;
  if (moving == 0) return profile.prefetch_block_ns;  // there already: the walk only
  return (moving & ~block->host_backed) != 0 ? profile.demote_block_first_ns : profile.demote_block_later_ns;
}

std::optional<TimeNs> MigrationWork::begin(TimeNs now_ns) {
  if (!is_locking_ && !try_lock()) return now_ns + kLockRetryNs;
  has_begun_ = true;
  return now_ns + block_cost(next_);
}

std::optional<TimeNs> MigrationWork::step(TimeNs now_ns) {
  const std::uint64_t range_end = range_.address + range_.bytes;
  if (!has_begun_) return begin(now_ns);
  if (status_ == Status::kOk && next_ < range_end) {
    apply(next_, now_ns);
    next_ = block_end(next_);
    if (next_ >= range_end && --passes_left_ > 0) next_ = range_.address;
  }
  TimeNs host_free_ns = now_ns;
  const bool is_over = status_ != Status::kOk || next_ >= range_end;
  // A demote maps pages on the CPU after their copies are through: only within a run does it work ahead
  // (hardware_truths 11).
  if (kind_ == MigrationKind::kDemote && (is_over || run_bytes_ >= machine_->profile.demote_run_bytes)) {
    host_free_ns = std::max(host_free_ns, ready_at_ns_);
    run_bytes_ = 0;
  }
  if (!is_over) return host_free_ns + block_cost(next_);
  if (host_free_ns > now_ns) return host_free_ns;
  if (std::exchange(is_locking_, false)) machine_->va_space.end_read();
  return std::nullopt;
}

void MigrationWork::apply(std::uint64_t address, TimeNs now_ns) {
  Residency& residency = machine_->residency;
  Block* block = residency.find(address);
  if (block == nullptr) {  // freed by another thread while this call was on its way
    status_ = Status::kInvalidValue;
    return;
  }
  if (kind_ == MigrationKind::kDiscard) {
    residency.discard(*block, device_, block->inside(range_));
    return;
  }
  const RegionMask regions = block->overlapping(range_);
  Move move;
  if (kind_ == MigrationKind::kPrefetch) {
    move = residency.move_to_device(*block, device_, regions, AccessKind::kRead, Cause::kUser, now_ns);
  } else {
    for (const BlockOnDevice& on : block->devices) {
      if ((on.resident & regions) != 0 && !block->is_read_mostly) block->demoted_at_ns = now_ns;
    }
    move = residency.move_to_host(*block, regions, block->is_read_mostly, Cause::kUser, now_ns);
    run_bytes_ += kBlockBytes;
  }
  status_ = move.status;
  if (status_ != Status::kOk) return;
  residency.revive_discarded(*block, regions);
  block->last_prefetch = kind_ == MigrationKind::kPrefetch ? device_ : kHost;
  ready_at_ns_ = std::max(ready_at_ns_, move.ready_at_ns);
}

TimeNs MigrationWork::completes_at(TimeNs now_ns) const { return std::max(now_ns, ready_at_ns_); }

}  // namespace hmshim::simgpu::machine
