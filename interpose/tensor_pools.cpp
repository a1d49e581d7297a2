#include "interpose/tensor_pools.hpp"

#include <fmt/format.h>

#include <new>

#include "interpose/log.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/shim.hpp"

namespace hmshim::interpose {

namespace {

// These handles mean another stream in each context, or thread.
bool is_by_context(CUstream stream) noexcept { return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD; }

std::uint64_t current_context(const uvm::DriverApi& driver) noexcept {
  CUcontext context = nullptr;
  return driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? reinterpret_cast<std::uintptr_t>(context) : 0;
}

}  // namespace

uvm::TensorPool* TensorPools::find(std::uint64_t context) const noexcept {
  for (const Entry& entry : entries()) {
    if (!entry.has_context.load(std::memory_order_acquire)) continue;
    uvm::TensorPool* pool = entry.pool.load(std::memory_order_relaxed);
    if (pool->config().context == context) return pool;
  }
  return nullptr;
}

std::size_t TensorPools::unused_entry() const noexcept {
  std::size_t index = 0;
  while (index < count_.load(std::memory_order_relaxed) && entries_[index].has_context.load(std::memory_order_relaxed))
    ++index;
  return index;
}

uvm::TensorPool* TensorPools::current() {
  const std::uint64_t context = current_context(shim_.driver);
  if (context == 0) return nullptr;
  if (uvm::TensorPool* pool = find(context)) return pool;
  CUdevice device = 0;
  if (shim_.driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) return nullptr;
  const auto ordinal = static_cast<std::size_t>(device);
  if (!shim_.can_manage(device)) return nullptr;

  const std::lock_guard lock(mutex_);
  if (uvm::TensorPool* pool = find(context)) return pool;
  const std::size_t index = unused_entry();
  if (index == kMostPools) return nullptr;
  const Device& of = shim_.devices[ordinal];
  auto* pool = new uvm::TensorPool(shim_.driver, shim_.allocations, shim_.backing, *this,
                                   {.device = static_cast<std::uint16_t>(ordinal),
                                    .context = context,
                                    .device_bytes = of.total_bytes,
                                    .device_threshold_bytes = shim_.config.device_threshold,
                                    .can_discard = of.capabilities.can_discard && shim_.config.discard});
  entries_[index].pool.store(pool);
  entries_[index].has_context.store(true, std::memory_order_release);
  if (index == count_.load(std::memory_order_relaxed)) count_.store(index + 1, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_relaxed);
  return pool;
}

uvm::TensorPool* TensorPools::holder(CUdeviceptr address) const noexcept {
  for (const Entry& entry : entries()) {
    uvm::TensorPool* pool = entry.pool.load(std::memory_order_relaxed);
    if (pool->owns(address)) return pool;
  }
  return nullptr;
}

void TensorPools::note_new_work(CUstream stream) {
  const std::uint64_t entry = seen_entry(stream);  // before: a pool made meanwhile must hear of the stream
  // With a single pool its streams are all that matter, and the driver need not be asked.
  uvm::TensorPool* pool = entries().size() == 1 ? entries_[0].pool.load() : find(current_context(shim_.driver));
  if (pool != nullptr && !pool->note_work(stream)) return;
  if (is_by_context(stream) && entries().size() > 1) return;
  seen_of(stream).store(entry, std::memory_order_relaxed);
}

void TensorPools::stream_ends(CUstream stream) {
  for (const Entry& entry : entries()) entry.pool.load(std::memory_order_relaxed)->forget(stream);
  generation_.fetch_add(1, std::memory_order_relaxed);
}

void TensorPools::context_ended(std::uint64_t context) {
  for (std::size_t index = 0; index < entries().size(); ++index) {
    Entry& entry = entries_[index];
    uvm::TensorPool* pool = entry.pool.load();  // before the entry may be used again
    if (pool->config().context == context && entry.has_context.exchange(false)) pool->note_destroyed();
  }
}

CUresult refused(std::uint64_t bytes, const uvm::Error& error) {
  log(LogLevel::Info,
      [&] { return fmt::format("allocation of {} bytes refused: {}", bytes, uvm::to_string(error.reason)); });
  if (error.reason == uvm::Reason::TableRefused) throw std::bad_alloc();
  return error.code;
}

CUresult TensorPools::allocate(uvm::TensorPool& pool, CUdeviceptr* address, std::uint64_t bytes,
                               std::optional<CUstream> stream) {
  const uvm::Result<uvm::Tensor> tensor = pool.allocate(bytes, stream);
  if (!tensor) return refused(bytes, tensor.error());
  *address = tensor->address;
  shim_.trace.allocated(tensor->address, bytes, tensor->extent);
  contain([&] {
    if (tensor->extent == policy::kNoExtent) {
      shim_.device_allocations.add(tensor->bytes);
      shim_.fit_budget(pool.config().device);
      return;
    }
    shim_.managed_allocations.add(tensor->bytes);
    if (!tensor->is_discarded) return;
    shim_.engines.populate(tensor->extent, pool.config().device, stream.value_or(pool.own_stream()));
    // Without a stream of its own the allocation may be used in any: it must have been populated when it is known.
    if (!stream) static_cast<void>(real().cuStreamSynchronize(pool.own_stream()));
  });
  return CUDA_SUCCESS;
}

CUresult TensorPools::free(uvm::TensorPool& pool, CUdeviceptr address, std::optional<CUstream> stream) {
  shim_.trace.freed(address);
  const uvm::Result<uvm::Tensor> tensor = pool.free(address, stream);
  // An address in memory of ours, but of no live tensor: the driver must not hear of it.
  if (!tensor) return tensor.error().code;
  (tensor->extent == policy::kNoExtent ? shim_.device_allocations : shim_.managed_allocations).remove(tensor->bytes);
  // The last tensor is gone by a call that may wait for the device: the memory goes back, as it would without a pool.
  // The guest hears it when the driver refuses some, which is then the pool's.
  CUresult result = CUDA_SUCCESS;
  if (!stream && pool.bytes().used == 0) {
    contain([&] {
      result = pool.trim(0);
      shim_.fit_budget(pool.config().device);
    });
  }
  return result;
}

// ---- the guest's view

uvm::PoolBytes TensorPools::bytes(std::uint16_t device) const {
  uvm::PoolBytes sum;
  for (const Entry& entry : entries()) {
    const uvm::TensorPool& pool = *entry.pool.load(std::memory_order_relaxed);
    if (pool.config().device != device) continue;
    const uvm::PoolBytes bytes = pool.bytes();
    sum.used += bytes.used;
    sum.used_high += bytes.used_high;
    sum.reserved += bytes.reserved;
    sum.reserved_high += bytes.reserved_high;
  }
  return sum;
}

void TensorPools::reset_high(std::uint16_t device) {
  for (const Entry& entry : entries()) {
    if (entry.pool.load()->config().device == device) entry.pool.load()->reset_high();
  }
}

// Only the pool of the current context: another's memory is not to be freed from here.
void TensorPools::trim(std::uint16_t device, std::uint64_t keep_bytes) {
  uvm::TensorPool* pool = find(current_context(shim_.driver));
  if (pool != nullptr && pool->config().device == device) static_cast<void>(pool->trim(keep_bytes));
}

void TensorPools::created(CUmemoryPool pool, const CUmemPoolProps& properties) {
  const bool is_plain = properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                        properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
                        properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const std::lock_guard lock(mutex_);
  created_[pool] = is_plain ? std::optional(static_cast<std::uint16_t>(properties.location.id)) : std::nullopt;
}

void TensorPools::destroyed(CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  created_.erase(pool);
}

bool TensorPools::is_foreign(CUmemoryPool pool) const {
  const std::lock_guard lock(mutex_);
  const auto found = created_.find(pool);
  return found != created_.end() && !found->second;
}

std::optional<std::uint16_t> TensorPools::device_of(CUmemoryPool pool) const {
  const auto managed = [this](std::size_t ordinal) {
    return shim_.can_manage(static_cast<CUdevice>(ordinal)) ? std::optional(static_cast<std::uint16_t>(ordinal))
                                                            : std::nullopt;
  };
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = created_.find(pool); found != created_.end())
      return found->second ? managed(*found->second) : std::nullopt;
  }
  for (std::size_t ordinal = 0; ordinal < shim_.devices.size(); ++ordinal) {
    CUmemoryPool default_pool = nullptr;
    if (shim_.driver.cuDeviceGetDefaultMemPool != nullptr &&
        shim_.driver.cuDeviceGetDefaultMemPool(&default_pool, static_cast<CUdevice>(ordinal)) == CUDA_SUCCESS &&
        default_pool == pool)
      return managed(ordinal);
  }
  return std::nullopt;
}

void TensorPools::set_current(std::uint16_t device, CUmemoryPool pool) {
  const bool is_of_another_kind = is_foreign(pool);
  const std::lock_guard lock(mutex_);
  if (is_of_another_kind) {
    devices_with_foreign_.insert(device);
  } else {
    devices_with_foreign_.erase(device);
  }
}

bool TensorPools::is_current_foreign(std::uint16_t device) const {
  const std::lock_guard lock(mutex_);
  return devices_with_foreign_.contains(device);
}

// ---- between the pools and the engines

void TensorPools::discard(std::span<const policy::ExtentId> extents) noexcept {
  contain([&] {
    for (const Entry& entry : entries()) {
      if (entry.has_context.load()) entry.pool.load(std::memory_order_relaxed)->discard(extents);
    }
  });
}

std::uint64_t TensorPools::pin(std::uint64_t address) noexcept {
  uvm::TensorPool* pool = holder(address);
  return pool != nullptr ? pool->pin(address) : 0;
}

void TensorPools::unpin(std::uint64_t base) noexcept {
  if (uvm::TensorPool* pool = holder(base)) pool->unpin(base);
}

void TensorPools::allocated(const uvm::Allocation& allocation) noexcept {
  contain([&] { shim_.engines.allocated(allocation); });
}
void TensorPools::retired(const uvm::Allocation& allocation) noexcept {
  contain([&] { shim_.engines.retired(allocation); });
}
void TensorPools::revived(const uvm::Allocation& allocation) noexcept {
  contain([&] { shim_.engines.revived(allocation); });
}
void TensorPools::reshaped(std::span<const policy::ExtentId> before, std::span<const uvm::Allocation> after) noexcept {
  contain([&] { shim_.engines.reshaped(before, after); });
}
void TensorPools::freed(const uvm::Allocation& allocation) noexcept {
  contain([&] { shim_.engines.freed(allocation); });
}
bool TensorPools::is_resident(policy::ExtentId extent) const noexcept { return shim_.engines.is_resident(extent); }
bool TensorPools::is_capturing() const noexcept { return shim_.captures.are_running(); }

}  // namespace hmshim::interpose
