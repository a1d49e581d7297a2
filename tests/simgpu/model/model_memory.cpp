#include "tests/simgpu/model/model_impl.hpp"

namespace hmshim::simgpu {

bool Model::Impl::is_managed(Range range) const {
  if (range.bytes == 0) return false;
  const Allocation* allocation = machine.memory.find(range.address, range.bytes);
  return allocation != nullptr && allocation->kind == MemoryKind::kManaged;
}

const Allocation* Model::Impl::find_live(std::uint64_t address) const {
  const Allocation* allocation = machine.memory.find(address);
  const bool is_start = allocation != nullptr && allocation->address == address;
  return is_start && !freeing.contains(address) ? allocation : nullptr;
}

void Model::Impl::release(const Allocation& allocation) {
  freeing.erase(allocation.address);
  if (allocation.kind == MemoryKind::kManaged) {
    machine.residency.remove(allocation);
    machine.memory.release(allocation.address);
    return;
  }
  const int device = allocation.device;
  const std::uint64_t held = machine.memory.chunks_held(device);
  machine.memory.release(allocation.address);
  machine.residency.return_device_chunks(device, held - machine.memory.chunks_held(device));
}

namespace {

/// A call that changes the address space: it has the driver's lock from here to its end.
class AddressSpaceChange {
 public:
  AddressSpaceChange(Call& call, VaSpaceLock& lock) : lock_(lock) {
    lock_.ask_for_write();
    call.wait([this] { return lock_.try_write(); });
  }
  ~AddressSpaceChange() { lock_.end_write(); }
  AddressSpaceChange(const AddressSpaceChange&) = delete;
  AddressSpaceChange& operator=(const AddressSpaceChange&) = delete;

 private:
  VaSpaceLock& lock_;
};

}  // namespace

// ---- memory ---------------------------------------------------------------------------------------------------------

Status Model::allocate_device(int device, std::uint64_t bytes, std::uint64_t* address) {
  if (in_body()) return Status::kNotPermitted;
  Call call(impl_->simulation, profile().alloc_host_ns);
  if (!impl_->is_device(device) || bytes == 0) return Status::kInvalidValue;
  Machine& machine = impl_->machine;
  if (machine.status_of(device) != Status::kOk) return machine.status_of(device);
  const AddressSpaceChange change(call, machine.va_space);
  const std::uint64_t held = machine.memory.chunks_held(device);
  const auto place = machine.memory.allocate(MemoryKind::kDevice, device, bytes);
  if (!place) return Status::kOutOfMemory;
  const Move move = machine.residency.take_device_chunks(device, machine.memory.chunks_held(device) - held, call.now());
  if (move.status != Status::kOk) {
    machine.memory.release(*place);
    return move.status;
  }
  *address = *place;
  call.spend_until(move.ready_at_ns);
  return Status::kOk;
}

Status Model::allocate_managed(int device, std::uint64_t bytes, std::uint64_t* address) {
  if (in_body()) return Status::kNotPermitted;
  Call call(impl_->simulation, profile().alloc_host_ns);
  if (!impl_->is_device(device) || bytes == 0) return Status::kInvalidValue;
  Machine& machine = impl_->machine;
  if (machine.status_of(device) != Status::kOk) return machine.status_of(device);
  const AddressSpaceChange change(call, machine.va_space);
  const auto place = machine.memory.allocate(MemoryKind::kManaged, device, bytes);
  if (!place) return Status::kOutOfMemory;
  machine.residency.add(*machine.memory.find(*place));
  *address = *place;
  return Status::kOk;
}

Status Model::free_memory(std::uint64_t address) {
  if (in_body()) return Status::kNotPermitted;
  Call call(impl_->simulation, profile().alloc_host_ns);
  const Allocation* allocation = impl_->find_live(address);
  if (allocation == nullptr) return Status::kInvalidValue;
  std::vector<OpPtr> before;
  for (int device = 0; device < device_count(); ++device) {
    if (allocation->kind == MemoryKind::kDevice && allocation->device != device) continue;
    const std::vector<OpPtr> tails = impl_->engine.device_tails(device);
    before.insert(before.end(), tails.begin(), tails.end());
  }
  call.wait([&] { return all_done(before); });
  const AddressSpaceChange change(call, impl_->machine.va_space);
  allocation = impl_->find_live(address);
  if (allocation == nullptr) return Status::kInvalidValue;  // another thread freed it meanwhile
  impl_->release(Allocation(*allocation));
  return Status::kOk;
}

Status Model::free_async(StreamId stream, std::uint64_t address) {
  return enqueue("free", stream, [&](Op& op) {
    if (impl_->find_live(address) == nullptr) return Status::kInvalidValue;
    impl_->freeing.insert(address);
    op.effect = [impl = impl_.get(), address](TimeNs) {
      impl->release(Allocation(*impl->machine.memory.find(address)));
    };
    return Status::kOk;
  });
}

std::optional<Allocation> Model::find_allocation(std::uint64_t address) const {
  const auto lock = impl_->simulation.lock();
  const Allocation* allocation = impl_->machine.memory.find(address);
  return allocation == nullptr ? std::nullopt : std::optional(*allocation);
}

Status Model::mem_info(int device, MemInfo* info) {
  if (in_body()) return Status::kNotPermitted;
  const Call call(impl_->simulation, profile().call_host_ns);
  if (!impl_->is_device(device)) return Status::kInvalidValue;
  info->free_bytes = impl_->machine.residency.free_chunks(device) * kBlockBytes;
  info->total_bytes = impl_->machine.residency.total_chunks() * kBlockBytes;
  return impl_->machine.status_of(device);
}

// ---- managed memory -------------------------------------------------------------------------------------------------

Status Model::advise(Range range, Advice advice, Location where) {
  if (in_body()) return Status::kNotPermitted;
  Call call(impl_->simulation, profile().advise_call_ns);
  const bool takes_location =
      advice == Advice::kSetPreferredLocation || advice == Advice::kSetAccessedBy || advice == Advice::kUnsetAccessedBy;
  const bool is_location = where == kHost || impl_->is_device(where);
  if (!impl_->is_managed(range) || (takes_location && !is_location)) return Status::kInvalidValue;
  const AddressSpaceChange change(call, impl_->machine.va_space);
  const std::uint64_t end = range.address + range.bytes;
  const std::uint64_t first = range.address / kBlockBytes * kBlockBytes;
  const auto blocks = static_cast<TimeNs>((end - first + kBlockBytes - 1) / kBlockBytes);
  call.spend_until(call.now() + blocks * profile().advise_block_ns);
  for (std::uint64_t address = first; address < end; address += kBlockBytes) {
    Block* block = impl_->machine.residency.find(address);
    if (block == nullptr) return Status::kInvalidValue;  // freed by another thread meanwhile
    // A policy on a part of a block splits its VA range: two small blocks, which the driver's lists ignore (uvm.md B1,
    // B9).
    if (block->inside(range) != block->all) block->is_small = true;
    impl_->machine.residency.advise(*block, advice, where);
  }
  return Status::kOk;
}

Status Model::prefetch(StreamId stream, Range range, Location destination) {
  if (destination != kHost && !impl_->is_device(destination)) return Status::kInvalidValue;
  return migrate(stream, range, destination == kHost ? MigrationKind::kDemote : MigrationKind::kPrefetch, destination);
}

Status Model::discard(StreamId stream, Range range) {
  return migrate(stream, range, MigrationKind::kDiscard, kNowhere);
}

Status Model::migrate(StreamId stream, Range range, MigrationKind kind, Location destination) {
  if (in_body()) return Status::kNotPermitted;
  Call call(impl_->simulation, profile().prefetch_call_ns);
  Engine& engine = impl_->engine;
  const auto device = engine.device_of(stream);
  if (!device) return Status::kInvalidHandle;
  if (!impl_->is_managed(range)) return Status::kInvalidValue;
  if (impl_->machine.status_of(*device) != Status::kOk) return impl_->machine.status_of(*device);

  const OpPtr op = impl_->new_op("migration", stream, *device, call.now());
  auto work = std::make_unique<MigrationWork>(impl_->machine, kind, destination >= 0 ? destination : *device, range);
  if (!engine.blockers_of(stream).empty()) {
    op->work = std::move(work);
    op->resource = &engine.deferred_worker();
    engine.enqueue(op);
    return Status::kOk;
  }
  // On an idle stream the ioctl runs in the caller (hardware_truths 5), who sleeps until it has the lock.
  op->is_held_by_caller = true;
  engine.enqueue(op);
  call.wait([&] { return work->try_lock(); });
  while (const auto next = work->step(call.now())) call.spend_until(*next);
  engine.finish_held(op, work->completes_at(call.now()));
  return work->status();
}

Status Model::host_access(Access access) {
  if (in_body()) return Status::kNotPermitted;
  Call call(impl_->simulation, profile().call_host_ns);
  if (!impl_->is_managed({access.address, access.bytes})) return Status::kInvalidValue;
  Residency& residency = impl_->machine.residency;
  const int counting_device = impl_->machine.memory.find(access.address)->device;
  const std::uint64_t end = access.address + access.bytes;
  for (std::uint64_t address = access.address; address < end;) {
    Block* block = residency.find(address);
    if (block == nullptr) return Status::kInvalidValue;  // freed by another thread meanwhile
    const RegionMask regions = block->overlapping({access.address, access.bytes});
    residency.expire_pin(*block, call.now());
    residency.use_discarded(*block, counting_device, regions, access.kind);
    RegionMask faulting = regions & ~block->on_host;
    if (access.kind != AccessKind::kRead) {
      for (const BlockOnDevice& on : block->devices) faulting |= regions & on.resident;
    }
    if (faulting != 0) {
      const Thrashing::Hint hint = residency.judge_fault(*block, kHost, call.now());
      if (hint.answer == Thrashing::Answer::kThrottle) {
        call.spend_until(hint.until_ns);
        continue;
      }
      const bool keeps_duplicates = block->is_read_mostly && access.kind == AccessKind::kRead;
      const TimeNs fault_ns = profile().cpu_fault_block_ns;
      const Move move =
          residency.move_to_host(*block, faulting, keeps_duplicates, Cause::kCoherence, call.now() + fault_ns);
      if (move.status != Status::kOk) return move.status;
      address = block->address + block->bytes;
      call.spend_until(move.ready_at_ns);
    } else {
      address = block->address + block->bytes;
    }
  }
  return Status::kOk;
}

std::optional<BlockState> Model::block_state(std::uint64_t address) {
  const auto lock = impl_->simulation.lock();
  const Block* block = impl_->machine.residency.find(address);
  if (block == nullptr) return std::nullopt;
  BlockState state;
  state.on_host = block->on_host != 0;
  state.is_populated = block->populated != 0;
  RegionMask resident = block->on_host;
  for (const BlockOnDevice& on : block->devices) {
    state.on_device.push_back(on.resident != 0);
    state.has_chunk.push_back(on.has_chunk);
    state.regions.push_back(on.resident);
    state.accessed_by.push_back(on.is_accessed_by);
    resident |= on.resident;
  }
  state.is_discarded = resident != 0 && (resident & ~block->discarded) == 0;
  state.is_read_mostly = block->is_read_mostly;
  state.preferred = block->preferred;
  state.last_prefetch = block->last_prefetch;
  return state;
}

}  // namespace hmshim::simgpu
