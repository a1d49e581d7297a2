#include "uvm/allocation_table.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <new>

namespace hmshim::uvm {

namespace {

using policy::kBlockBytes;

// Zeroed and paid for page by page as it is touched: the root spans the whole address space and is almost everywhere
// empty.
template <class T>
T* map_zeroed(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<T*>(memory);
}

// base_of_extent_ of an extent without a live allocation; no managed base is that low.
constexpr std::uint64_t kFree = 0;  // may be given out
constexpr std::uint64_t kHeld = 1;  // its allocation was removed, somebody may still decide by it

// One past the addresses that no other allocation may use: managed memory owns its last block whole.
std::uint64_t end_of(const Allocation& allocation) noexcept {
  return allocation.base +
         (allocation.backing == Backing::Managed ? policy::round_up_to_block(allocation.bytes) : allocation.bytes);
}

}  // namespace

AllocationTable::AllocationTable() : root_(map_zeroed<std::atomic<Leaf*>>(kRootEntries * sizeof(std::atomic<Leaf*>))) {}

AllocationTable::~AllocationTable() {
  for (std::uint64_t address = low_; address < high_;) {
    std::atomic<Leaf*>& entry = root_[address >> (kBlockShift + kLeafShift)];
    if (Leaf* leaf = entry.load()) munmap(leaf, sizeof(Leaf));
    address = ((address >> (kBlockShift + kLeafShift)) + 1) << (kBlockShift + kLeafShift);
  }
  munmap(root_, kRootEntries * sizeof(std::atomic<Leaf*>));
}

std::atomic<std::uint64_t>& AllocationTable::word_of(std::uint64_t address) noexcept {
  Leaf* leaf = root_[address >> (kBlockShift + kLeafShift)].load(std::memory_order_relaxed);
  return leaf->words[(address >> kBlockShift) % kLeafWords];
}

void AllocationTable::map_leaves(std::uint64_t base, std::uint64_t end) {
  const std::uint64_t last = (end - 1) >> (kBlockShift + kLeafShift);
  for (std::uint64_t at = base >> (kBlockShift + kLeafShift); at <= last; ++at) {
    if (root_[at].load(std::memory_order_relaxed) != nullptr) continue;
    root_[at].store(map_zeroed<Leaf>(sizeof(Leaf)), std::memory_order_release);
  }
}

bool AllocationTable::overlaps(std::uint64_t base, std::uint64_t end) const {
  const auto next = records_.lower_bound(base);
  if (next != records_.end() && next->first < end) return true;
  return next != records_.begin() && end_of(std::prev(next)->second) > base;
}

bool AllocationTable::is_held(policy::ExtentId extent) const {
  return extent < base_of_extent_.size() && base_of_extent_[extent] == kHeld;
}

void AllocationTable::claim_extent(Allocation& allocation) {
  if (allocation.extent == policy::kNoExtent) {
    if (free_extents_.empty()) {
      if (base_of_extent_.size() == base_of_extent_.capacity())
        base_of_extent_.reserve(2 * base_of_extent_.size() + 64);
      free_extents_.reserve(base_of_extent_.capacity());
      base_of_extent_.push_back(kFree);
      allocation.extent = static_cast<policy::ExtentId>(base_of_extent_.size() - 1);
    } else {
      std::ranges::pop_heap(free_extents_, std::greater{});
      allocation.extent = free_extents_.back();
      free_extents_.pop_back();
    }
  }
  base_of_extent_[allocation.extent] = allocation.base;
}

void AllocationTable::write_words(const Allocation& allocation) {
  const std::uint64_t who = allocation.extent | std::uint64_t{allocation.device} << kDeviceShift;
  for (std::uint64_t offset = 0; offset < allocation.bytes; offset += kBlockBytes) {
    const std::uint64_t used = std::min(allocation.bytes - offset, kBlockBytes);
    word_of(allocation.base + offset).store(who | used << kUsedShift, std::memory_order_relaxed);
  }
}

bool AllocationTable::insert(Allocation& allocation) noexcept try {
  constexpr std::uint64_t kAddressEnd = std::uint64_t{1} << kAddressBits;
  if (allocation.base == 0 || allocation.base >= kAddressEnd) return false;
  if (allocation.bytes == 0 || allocation.bytes > kAddressEnd - allocation.base) return false;
  const bool is_managed = allocation.backing == Backing::Managed;
  if (is_managed && (allocation.base % kBlockBytes != 0 || allocation.device >= kMaxDevices)) return false;
  const std::uint64_t end = end_of(allocation);

  const MutexLock lock(mutex_);
  if (overlaps(allocation.base, end)) return false;
  if (allocation.extent != policy::kNoExtent && !is_held(allocation.extent)) return false;
  const auto record = records_.emplace(allocation.base, allocation).first;
  if (!is_managed) return true;
  try {
    // Widened before leaves are mapped: the destructor looks for leaves inside the window.
    low_.store(std::min(low_.load(std::memory_order_relaxed), allocation.base), std::memory_order_relaxed);
    high_.store(std::max(high_.load(std::memory_order_relaxed), end), std::memory_order_relaxed);
    map_leaves(allocation.base, end);
    claim_extent(allocation);
  } catch (const std::bad_alloc&) {
    records_.erase(record);
    return false;
  }
  record->second.extent = allocation.extent;
  write_words(allocation);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void AllocationTable::take_out(Records::iterator record) {
  const Allocation& allocation = record->second;
  if (allocation.backing == Backing::Managed) {
    for (std::uint64_t offset = 0; offset < allocation.bytes; offset += kBlockBytes) {
      word_of(allocation.base + offset).store(0, std::memory_order_relaxed);
    }
    base_of_extent_[allocation.extent] = kHeld;
  }
  records_.erase(record);
}

std::optional<Allocation> AllocationTable::remove(std::uint64_t base) noexcept {
  const MutexLock lock(mutex_);
  const auto record = records_.find(base);
  if (record == records_.end()) return std::nullopt;
  const Allocation removed = record->second;
  take_out(record);
  return removed;
}

std::vector<Allocation> AllocationTable::remove_context(std::uint64_t context) {
  const MutexLock lock(mutex_);
  std::vector<Allocation> removed;
  for (const auto& [base, allocation] : records_) {
    if (allocation.context == context) removed.push_back(allocation);
  }
  for (const Allocation& allocation : removed) take_out(records_.find(allocation.base));
  return removed;
}

void AllocationTable::release_extent(policy::ExtentId extent) noexcept {
  const MutexLock lock(mutex_);
  if (!is_held(extent)) return;
  base_of_extent_[extent] = kFree;
  free_extents_.push_back(extent);
  std::ranges::push_heap(free_extents_, std::greater{});
}

Allocation* AllocationTable::record_of(policy::ExtentId extent) {
  if (extent >= base_of_extent_.size() || base_of_extent_[extent] <= kHeld) return nullptr;
  return &records_.find(base_of_extent_[extent])->second;
}

void AllocationTable::retire(policy::ExtentId extent) noexcept {
  const MutexLock lock(mutex_);
  if (Allocation* record = record_of(extent)) record->is_live = false;
}

void AllocationTable::revive(policy::ExtentId extent, std::uint64_t bytes) noexcept {
  const MutexLock lock(mutex_);
  Allocation* record = record_of(extent);
  if (record == nullptr) return;
  record->is_live = true;
  if (record->bytes == bytes) return;  // the words have stayed as they were
  record->bytes = bytes;
  write_words(*record);
}

std::optional<Allocation> AllocationTable::lookup(std::uint64_t address) const noexcept {
  const MutexLock lock(mutex_);
  const auto next = records_.upper_bound(address);
  if (next == records_.begin()) return std::nullopt;
  const Allocation& candidate = std::prev(next)->second;
  if (!candidate.is_live || address - candidate.base >= candidate.bytes) return std::nullopt;
  return candidate;
}

std::optional<Allocation> AllocationTable::lookup_extent(policy::ExtentId extent) const noexcept {
  const MutexLock lock(mutex_);
  if (extent >= base_of_extent_.size() || base_of_extent_[extent] <= kHeld) return std::nullopt;
  return records_.at(base_of_extent_[extent]);
}

std::uint64_t AllocationTable::live() const noexcept {
  const MutexLock lock(mutex_);
  return records_.size();
}

}  // namespace hmshim::uvm
