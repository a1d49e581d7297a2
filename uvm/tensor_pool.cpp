#include "uvm/tensor_pool.hpp"

#include <algorithm>
#include <new>

namespace hmshim::uvm {

namespace {

using policy::ExtentId;
using policy::kBlockBytes;
using policy::kNoExtent;

// A slab's untouched blocks occupy nothing, but they are promised. One slab may be all but unused at any time, so it is
// kept to this share of the device, where the promise would be missed by nobody. 512 MiB are enough to make slabs rare:
// an allocation of managed memory is about a hundred microseconds, and stops every other thread's.
constexpr std::uint64_t kSlabsPerDevice = 64;
constexpr std::uint64_t kMostSlabBytes = std::uint64_t{512} << 20;

std::uint64_t blocks_of(std::uint64_t bytes) noexcept { return policy::round_up_to_block(bytes) / kBlockBytes; }

}  // namespace

TensorPool::TensorPool(const DriverApi& api, AllocationTable& table, BackingStore& backing, TensorObserver& observer,
                       const PoolConfig& config)
    : api_(api), table_(table), backing_(backing), observer_(observer), config_(config) {
  // Without a stream of its own the pool discards nothing. It lives as long as the context.
  if (config.can_discard && api.cuStreamCreate(&own_stream_, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
    own_stream_ = nullptr;
}

// ---- streams

// kAny for no stream; nothing for one that the driver does not know, or that cannot be ordered behind others now.
std::optional<StreamOrder::Index> TensorPool::known(std::optional<CUstream> stream) {
  if (!stream) return StreamOrder::kAny;
  {
    const MutexLock lock(mutex_);
    if (const auto index = order_.find(*stream)) return index;
  }
  if (may_be_capturing(api_, *stream)) return std::nullopt;
  CUevent event = nullptr;
  if (api_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return std::nullopt;
  StreamOrder::Wait wait;
  {
    const MutexLock lock(mutex_);
    wait = order_.add(*stream, event);
  }
  if (wait.spare != nullptr) static_cast<void>(api_.cuEventDestroy_v2(wait.spare));
  // Once for each stream: where its order cannot be had otherwise, the host waits. While anything is captured it may
  // not: the stream stays a source that others wait for, and is admitted later.
  if (!wait.targets.empty() && !StreamOrder::execute(api_, wait)) {
    if (observer_.is_capturing()) return std::nullopt;
    static_cast<void>(api_.cuCtxSynchronize());
  }
  const MutexLock lock(mutex_);
  return order_.admit(*stream);
}

bool TensorPool::make_ordered(StreamOrder::Point point, Index requester) {
  StreamOrder::Wait wait;
  {
    const MutexLock lock(mutex_);
    wait = order_.wait_for(point, requester);
  }
  if (!StreamOrder::execute(api_, wait)) return false;
  const MutexLock lock(mutex_);
  order_.executed(wait);
  return true;
}

bool TensorPool::note_work(CUstream stream) { return known(stream).has_value(); }

void TensorPool::forget(CUstream stream) {
  std::optional<Index> index;
  CUevent event = nullptr;
  {
    const MutexLock lock(mutex_);
    index = order_.find(stream);
    if (!index) return;
    event = order_.event_of(*index);
  }
  const bool is_recorded = api_.cuEventRecord(event, stream) == CUDA_SUCCESS;
  const MutexLock lock(mutex_);
  order_.forget(*index, is_recorded);
}

// ---- allocation

Result<Tensor> TensorPool::allocate(std::uint64_t bytes, std::optional<CUstream> stream) {
  const std::optional<Index> requester = known(stream);
  if (!requester) return Error{CUDA_ERROR_INVALID_HANDLE, Reason::DriverRefused};
  if (bytes > kUnlimited - kBlockBytes) return Error{CUDA_ERROR_OUT_OF_MEMORY, Reason::HostMemory};
  if (bytes >= config_.device_threshold_bytes) {
    reap_discards();
    return allocate_run(Backing::Managed, bytes, *requester);
  }
  return bytes < kLeastRunBytes ? allocate_small(bytes, *requester) : allocate_run(Backing::Device, bytes, *requester);
}

Result<Tensor> TensorPool::allocate_run(Backing backing, std::uint64_t bytes, Index requester) {
  {
    const MutexLock lock(mutex_);
    if (const auto tensor = take_run(backing, bytes, requester)) return *tensor;
    join_neighbours(backing, requester, false);
    if (const auto tensor = take_run(backing, bytes, requester)) return *tensor;
  }
  if (const auto tensor = take_unordered_run(backing, bytes, requester)) return *tensor;

  const std::uint64_t least_bytes = policy::round_up_to_block(bytes);
  // Device memory is taken from the device at once, untouched or not: no more of it than is asked for.
  const std::uint64_t slab_bytes =
      backing == Backing::Device
          ? least_bytes
          : std::max(least_bytes,
                     std::min(kMostSlabBytes, config_.device_bytes / kSlabsPerDevice) / kBlockBytes * kBlockBytes);
  if (const auto tensor = grow(backing, bytes, slab_bytes, requester)) return tensor;
  static_cast<void>(trim(0));
  {
    const MutexLock lock(mutex_);
    join_neighbours(backing, requester, true);
    if (const auto tensor = take_run(backing, bytes, requester)) return *tensor;
  }
  return grow(backing, bytes, least_bytes, requester);
}

std::optional<Tensor> TensorPool::take_run(Backing backing, std::uint64_t bytes, Index requester) {
  Arena& from = arena(backing);
  // Resident memory first, then what nobody has touched: what may be on the host would have to travel.
  const auto rank = [&](const Run& run) {
    if (!order_.is_ordered(run.freed, requester)) return 0;
    if (backing == Backing::Device || run.extent == kNoExtent) return 2;
    return observer_.is_resident(run.extent) ? BlockRuns::kBestRank : run.is_discarded ? 2 : 1;
  };
  Run* run = from.runs.find_free(blocks_of(bytes), rank);
  if (run == nullptr) return std::nullopt;
  from.runs.take(*run, Run::State::Used);
  if (requester == StreamOrder::kAny) order_.lend_to_any();
  return hand_out(backing, *run, bytes);
}

// A run that another stream may still be using: the requester waits for that stream, on the device.
std::optional<Tensor> TensorPool::take_unordered_run(Backing backing, std::uint64_t bytes, Index requester) {
  Run* run = nullptr;
  StreamOrder::Point freed;
  {
    const MutexLock lock(mutex_);
    run = arena(backing).runs.find_free(blocks_of(bytes), [](const Run&) { return BlockRuns::kBestRank; });
    if (run == nullptr) return std::nullopt;
    arena(backing).runs.take(*run, Run::State::Held);
    freed = run->freed;
  }
  const bool is_ordered = make_ordered(freed, requester);
  const MutexLock lock(mutex_);
  if (!is_ordered) {
    arena(backing).runs.give(*run);
    return std::nullopt;
  }
  if (requester == StreamOrder::kAny) order_.lend_to_any();
  run->state = Run::State::Used;
  return hand_out(backing, *run, bytes);
}

Result<Tensor> TensorPool::grow(Backing backing, std::uint64_t bytes, std::uint64_t slab_bytes, Index requester) {
  const Result<Memory> memory = backing_.take(slab_bytes, config_.device, backing);
  if (!memory) {
    const std::uint64_t least_bytes = policy::round_up_to_block(bytes);
    return slab_bytes > least_bytes ? grow(backing, bytes, least_bytes, requester) : Result<Tensor>(memory.error());
  }
  try {
    const MutexLock lock(mutex_);
    arena(backing).runs.add_slab({memory->base, memory->driver_base, memory->backed_bytes}, slab_bytes / kBlockBytes);
    reserved_high_bytes_ = std::max(reserved_high_bytes_, reserved_bytes());
  } catch (const std::bad_alloc&) {
    static_cast<void>(backing_.give_back(*memory, config_.device, backing));
    return Error{CUDA_ERROR_OUT_OF_MEMORY, Reason::TableRefused};
  }
  const MutexLock lock(mutex_);
  if (const auto tensor = take_run(backing, bytes, requester)) return *tensor;
  return Error{CUDA_ERROR_OUT_OF_MEMORY, Reason::TableRefused};
}

// Makes a run of state Used, in no bin, the guest's.
std::optional<Tensor> TensorPool::hand_out(Backing backing, Run& run, std::uint64_t bytes) {
  try {
    if (run.blocks > blocks_of(bytes)) cut(backing, run, blocks_of(bytes));
  } catch (const std::bad_alloc&) {
    arena(backing).runs.give(run);
    return std::nullopt;
  }
  run.bytes = bytes;
  if (backing == Backing::Managed) {
    if (run.extent != kNoExtent) {
      table_.revive(run.extent, bytes);
      observer_.revived(record_of(run));
    } else if (enter(run)) {
      observer_.allocated(record_of(run));
    } else {
      arena(backing).runs.give(run);
      return std::nullopt;
    }
  }
  arena(backing).used_bytes += run.blocks * kBlockBytes;
  note_used();
  return Tensor{.address = run.base,
                .bytes = run.blocks * kBlockBytes,
                .extent = run.extent,
                .is_discarded = std::exchange(run.is_discarded, false)};
}

void TensorPool::cut(Backing backing, Run& run, std::uint64_t blocks) {
  const ExtentId whole = run.extent;
  std::vector<Allocation> parts;
  parts.reserve(2);
  Run& rest = arena(backing).runs.cut(run, blocks);
  rest.state = Run::State::Held;
  if (whole != kNoExtent) {
    const Run::State state = std::exchange(run.state, Run::State::Held);
    for (Run* part : {&run, &rest}) part->bytes = part->blocks * kBlockBytes;
    static_cast<void>(table_.remove(run.base));
    for (Run* part : {&run, &rest}) {
      if (enter(*part)) parts.push_back(record_of(*part));
    }
    observer_.reshaped({&whole, 1}, parts);
    if (run.extent == kNoExtent) table_.release_extent(whole);
    run.state = state;
  }
  arena(backing).runs.give(rest);
}

void TensorPool::join_neighbours(Backing backing, Index requester, bool joins_untouched) {
  const auto is_joinable = [&](const Run& run) {
    return run.chunk == nullptr && order_.is_ordered(run.freed, requester) &&
           (joins_untouched || backing == Backing::Device || run.extent != kNoExtent);
  };
  arena(backing).runs.join_neighbours(is_joinable, [&](std::span<Run* const> group) {
    Run& first = *group.front();
    std::vector<ExtentId> before;
    before.reserve(group.size());
    std::uint64_t bytes = 0;
    bool is_discarded = false;
    for (Run* run : group) {
      bytes += run->blocks * kBlockBytes;
      is_discarded |= run->is_discarded;
      if (run->extent == kNoExtent) continue;
      before.push_back(run->extent);
      static_cast<void>(table_.remove(run->base));
      run_of_extent_[run->extent] = nullptr;
    }
    first.is_discarded = is_discarded;
    first.freed = order_.point(requester);  // later than each of theirs, for everybody
    if (before.empty()) return;
    Allocation joined = record_of(first);
    joined.bytes = joined.backed_bytes = bytes;
    joined.extent = before.front();
    // Without memory for the entry the run is as if it had never been touched.
    const bool is_entered = table_.insert(joined);
    first.extent = is_entered ? joined.extent : kNoExtent;
    if (is_entered) run_of_extent_[first.extent] = &first;
    observer_.reshaped(before, is_entered ? std::span<const Allocation>(&joined, 1) : std::span<const Allocation>());
    for (const ExtentId extent : before) table_.release_extent(extent);  // but for the one that is used again
  });
}

bool TensorPool::enter(Run& run) {
  Allocation allocation = record_of(run);
  if (!table_.insert(allocation)) {
    run.extent = kNoExtent;
    return false;
  }
  try {
    if (allocation.extent >= run_of_extent_.size()) run_of_extent_.resize(std::size_t{allocation.extent} + 1);
  } catch (const std::bad_alloc&) {
    static_cast<void>(table_.remove(run.base));
    table_.release_extent(allocation.extent);
    run.extent = kNoExtent;
    return false;
  }
  run.extent = allocation.extent;
  run_of_extent_[run.extent] = &run;
  return true;
}

void TensorPool::leave(Run& run) {
  static_cast<void>(table_.remove(run.base));
  observer_.freed(record_of(run));
  run_of_extent_[run.extent] = nullptr;
  table_.release_extent(std::exchange(run.extent, kNoExtent));
}

Allocation TensorPool::record_of(const Run& run) const noexcept {
  return {.base = run.base,
          .bytes = run.bytes,
          .backed_bytes = run.blocks * kBlockBytes,
          .context = config_.context,
          .extent = run.extent,
          .device = config_.device,
          .is_live = run.state == Run::State::Used};
}

// ---- small tensors

Result<Tensor> TensorPool::allocate_small(std::uint64_t bytes, Index requester) {
  if (const auto tensor = take_slot(bytes, requester)) return *tensor;
  const Result<Tensor> block = allocate_run(Backing::Device, kBlockBytes, requester);
  if (!block) {
    // The device has been waited for meanwhile: what was freed on other streams may be used now.
    const auto tensor = take_slot(bytes, requester);
    return tensor ? Result<Tensor>(*tensor) : block.error();
  }
  const MutexLock lock(mutex_);
  device_.used_bytes -= kBlockBytes;  // its slots are counted instead
  Run& run = *device_.runs.at(block->address);
  small_.add_chunk(run, small_slot_bytes(bytes));
  const SmallSlot* slot = small_.take(bytes, [&](const SmallSlot& each) { return each.chunk == run.chunk; });
  return Tensor{.address = slot->chunk->address_of(*slot), .bytes = slot->chunk->slot_bytes};
}

std::optional<Tensor> TensorPool::take_slot(std::uint64_t bytes, Index requester) {
  const MutexLock lock(mutex_);
  const SmallSlot* slot =
      small_.take(bytes, [&](const SmallSlot& each) { return order_.is_ordered(each.freed, requester); });
  if (slot == nullptr) return std::nullopt;
  if (requester == StreamOrder::kAny) order_.lend_to_any();
  note_used();
  return Tensor{.address = slot->chunk->address_of(*slot), .bytes = slot->chunk->slot_bytes};
}

// ---- free

Result<Tensor> TensorPool::free(std::uint64_t address, std::optional<CUstream> stream) {
  const std::optional<Index> index = known(stream);
  if (!index) return Error{CUDA_ERROR_INVALID_HANDLE, Reason::DriverRefused};
  CUevent event = nullptr;
  if (stream) {
    const MutexLock lock(mutex_);
    if (order_.is_per_thread(*index)) event = order_.event_of(*index);
  }
  if (event != nullptr) static_cast<void>(api_.cuEventRecord(event, *stream));

  const MutexLock lock(mutex_);
  if (Run* run = managed_.runs.at(address); run != nullptr && run->state == Run::State::Used) {
    run->freed = order_.point(*index);
    const Tensor tensor{.address = address, .bytes = run->blocks * kBlockBytes, .extent = run->extent};
    managed_.used_bytes -= tensor.bytes;
    table_.retire(run->extent);
    become_free(Backing::Managed, *run);
    return tensor;
  }
  Run* run = device_.runs.holder(address);
  if (run != nullptr && run->chunk != nullptr) {
    SmallSlot* slot = SmallTensors::find(*run->chunk, address);
    if (slot != nullptr && slot->state == Run::State::Used) {
      slot->freed = order_.point(*index);
      slot->pins > 0 ? small_.hold(*slot) : small_.give(*slot);
      return Tensor{.address = address, .bytes = run->chunk->slot_bytes};
    }
  } else if (run != nullptr && run->state == Run::State::Used && run->base == address) {
    run->freed = order_.point(*index);
    device_.used_bytes -= run->blocks * kBlockBytes;
    become_free(Backing::Device, *run);
    return Tensor{.address = address, .bytes = run->blocks * kBlockBytes};
  }
  return Error{CUDA_ERROR_INVALID_VALUE, Reason::NotOurs};
}

// What is pinned stays an extent like any until then: its graph touches it.
void TensorPool::become_free(Backing backing, Run& run) {
  if (run.pins > 0) {
    run.state = Run::State::Held;
    return;
  }
  arena(backing).runs.give(run);
  if (backing == Backing::Managed) observer_.retired(record_of(run));
}

std::uint64_t TensorPool::pin(std::uint64_t address) {
  const MutexLock lock(mutex_);
  for (const Arena* arena : {&managed_, &device_}) {
    Run* run = arena->runs.holder(address);
    if (run == nullptr || (run->state != Run::State::Used && run->pins == 0)) continue;
    if (run->chunk == nullptr) {
      ++run->pins;
      return run->base;
    }
    const std::uint64_t begin = address - (address - run->base) % run->chunk->slot_bytes;
    SmallSlot* slot = SmallTensors::find(*run->chunk, begin);
    if (slot == nullptr) return 0;
    ++slot->pins;
    return begin;
  }
  return 0;
}

void TensorPool::unpin(std::uint64_t base) {
  const MutexLock lock(mutex_);
  for (const Backing backing : {Backing::Managed, Backing::Device}) {
    Run* run = arena(backing).runs.holder(base);
    if (run == nullptr) continue;
    // The graph may still be running, on whatever stream.
    if (run->chunk != nullptr) {
      SmallSlot* slot = SmallTensors::find(*run->chunk, base);
      if (slot == nullptr || slot->pins == 0 || --slot->pins > 0 || slot->state != Run::State::Held) return;
      slot->freed = order_.point(StreamOrder::kAny);
      small_.give(*slot);
    } else if (run->base == base && run->pins > 0 && --run->pins == 0 && run->state == Run::State::Held) {
      run->freed = order_.point(StreamOrder::kAny);
      become_free(backing, *run);
    }
    return;
  }
}

bool TensorPool::owns(std::uint64_t address) const {
  const MutexLock lock(mutex_);
  return managed_.runs.owns(address) || device_.runs.owns(address);
}

std::optional<Tensor> TensorPool::find(std::uint64_t address) const {
  const MutexLock lock(mutex_);
  for (const Arena* arena : {&managed_, &device_}) {
    const Run* run = arena->runs.holder(address);
    if (run == nullptr || run->state != Run::State::Used) continue;
    if (run->chunk == nullptr) {
      if (address - run->base >= run->bytes) return std::nullopt;
      return Tensor{.address = run->base, .bytes = run->bytes, .extent = run->extent};
    }
    const std::uint64_t begin = address - (address - run->base) % run->chunk->slot_bytes;
    const SmallSlot* slot = SmallTensors::find(*run->chunk, begin);
    if (slot == nullptr || slot->state != Run::State::Used || address - begin >= slot->bytes) return std::nullopt;
    return Tensor{.address = begin, .bytes = slot->bytes};
  }
  return std::nullopt;
}

// ---- discard

void TensorPool::discard(std::span<const ExtentId> extents) {
  if (own_stream_ == nullptr || observer_.is_capturing()) return;
  std::vector<Run*> runs;
  std::vector<StreamOrder::Point> points;
  runs.reserve(extents.size());
  points.reserve(extents.size());
  StreamOrder::Wait wait;
  {
    const MutexLock lock(mutex_);
    for (const ExtentId extent : extents) {
      Run* run = extent < run_of_extent_.size() ? run_of_extent_[extent] : nullptr;
      if (run == nullptr || run->state != Run::State::Free) continue;
      managed_.runs.take(*run, Run::State::Held);
      runs.push_back(run);
      points.push_back(run->freed);
    }
    if (runs.empty()) return;
    wait = order_.wait_for(points, own_stream_);
  }
  if (!StreamOrder::execute(api_, wait)) {
    const MutexLock lock(mutex_);
    for (Run* run : runs) managed_.runs.give(*run);
    return;
  }
  std::vector<CUdeviceptr> addresses;
  std::vector<std::size_t> sizes;
  for (const Run* run : runs) {
    addresses.push_back(run->base);
    sizes.push_back(run->blocks * kBlockBytes);
  }
  // After an error part of it may be on its way all the same: what follows is the same.
  static_cast<void>(api_.cuMemDiscardBatchAsync(addresses.data(), sizes.data(), addresses.size(), 0, own_stream_));
  CUevent event = nullptr;
  if (api_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
      api_.cuEventRecord(event, own_stream_) != CUDA_SUCCESS) {
    static_cast<void>(api_.cuEventDestroy_v2(event));
    event = nullptr;
  }
  const MutexLock lock(mutex_);
  order_.executed(wait);
  discards_.push_back({event, event != nullptr, order_.now(), std::move(runs)});
}

void TensorPool::complete(Discard& discard) {
  for (Run* run : discard.runs) {
    run->is_discarded = true;
    run->freed = {};  // seen complete: in order with everything
    managed_.runs.give(*run);
  }
}

void TensorPool::reap_discards() {
  for (;;) {
    CUevent event = nullptr;
    {
      const MutexLock lock(mutex_);
      if (discards_.empty() || discards_.front().event == nullptr) return;
      event = std::exchange(discards_.front().event, nullptr);  // this thread's to ask; others find nothing to do
    }
    const bool is_complete = api_.cuEventQuery(event) == CUDA_SUCCESS;
    {
      const MutexLock lock(mutex_);
      if (discards_.empty()) return;  // the context was destroyed meanwhile
      if (!is_complete) {
        discards_.front().event = event;
        return;
      }
      complete(discards_.front());
      discards_.pop_front();
    }
    static_cast<void>(api_.cuEventDestroy_v2(event));
  }
}

// ---- trim

CUresult TensorPool::trim(std::uint64_t keep_bytes) {
  if (observer_.is_capturing() || bytes().reserved <= keep_bytes) return CUDA_SUCCESS;
  std::uint64_t at = 0;
  {
    const MutexLock lock(mutex_);
    at = order_.now();
  }
  // The first answer may be an error of work that was enqueued long ago.
  if (api_.cuCtxSynchronize() != CUDA_SUCCESS) {
    if (const CUresult code = api_.cuCtxSynchronize(); code != CUDA_SUCCESS) return code;
  }
  reap_discards();
  {
    const MutexLock lock(mutex_);
    order_.settle(at);
    while (!discards_.empty() && !discards_.front().is_recorded && discards_.front().at <= at) {
      complete(discards_.front());
      discards_.pop_front();
    }
    for (Run* run : small_.remove_idle_chunks(at)) {
      run->freed = {};
      device_.runs.give(*run);
    }
  }
  CUresult result = CUDA_SUCCESS;
  for (const Backing backing : {Backing::Managed, Backing::Device}) {
    std::vector<Slab> idle;
    {
      const MutexLock lock(mutex_);
      while (reserved_bytes() > keep_bytes) {
        const std::optional<Slab> slab = detach_idle_slab(backing);
        if (!slab) break;
        idle.push_back(*slab);
      }
    }
    for (const Slab& slab : idle) {
      const CUresult code =
          backing_.give_back({slab.base, slab.driver_base, slab.backed_bytes}, config_.device, backing);
      if (code == CUDA_SUCCESS) continue;
      result = code;
      const MutexLock lock(mutex_);
      const std::uint64_t usable_bytes = slab.backed_bytes - (slab.base - slab.driver_base);
      arena(backing).runs.add_slab(slab, usable_bytes / kBlockBytes);
    }
  }
  return result;
}

std::optional<Slab> TensorPool::detach_idle_slab(Backing backing) {
  for (const std::uint64_t base : arena(backing).runs.idle_slabs()) {
    const std::vector<Run*> runs = arena(backing).runs.runs_of(base);
    const auto is_settled = [this](const Run* run) { return order_.is_settled(run->freed); };
    if (!std::ranges::all_of(runs, is_settled)) continue;  // freed after the device was waited for
    for (Run* run : runs) {
      if (run->extent != kNoExtent) leave(*run);
    }
    return arena(backing).runs.remove_slab(base);
  }
  return std::nullopt;
}

void TensorPool::note_destroyed() {
  const MutexLock lock(mutex_);
  small_.clear();
  discards_.clear();
  run_of_extent_.clear();
  order_ = {};
  for (const Backing backing : {Backing::Managed, Backing::Device}) {
    arena(backing).used_bytes = 0;
    for (const Slab& slab : arena(backing).runs.remove_all())
      backing_.lost({slab.base, slab.driver_base, slab.backed_bytes}, config_.device, backing);
  }
}

PoolBytes TensorPool::bytes() const {
  const MutexLock lock(mutex_);
  return {used_bytes(), reserved_bytes(), used_high_bytes_, reserved_high_bytes_};
}

void TensorPool::reset_high() {
  const MutexLock lock(mutex_);
  used_high_bytes_ = used_bytes();
  reserved_high_bytes_ = reserved_bytes();
}

}  // namespace hmshim::uvm
