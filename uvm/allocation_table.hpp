// Address → allocation. Written under a mutex at alloc and free, read without a lock, a fence or a wait at every
// launch.
//
// Managed allocations begin on a 2 MiB boundary and own whole blocks, so one 64-bit word per block says it all: the
// extent, the device and how many bytes of the block the guest asked for. The words lie in leaves of 16,384 blocks (32
// GiB) below one root; leaves are mapped on demand and never unmapped while the table lives, so a reader needs no
// protection from their removal.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "policy/vocabulary.hpp"
#include "uvm/mutex.hpp"

namespace hmshim::uvm {

// Where the bytes of an allocation of the guest live.
enum class Backing : std::uint8_t {
  Managed,         // ours: cuMemAllocManaged in the place of device memory
  Device,          // real device memory: too small to be worth managing, or excluded
  Remote,          // ours, too large for the device: managed memory that stays on the host, accessed over the link
  ProgramManaged,  // managed memory that the guest asked for itself: counted, never acted upon
};

struct Allocation {
  std::uint64_t base = 0;                       // the address the guest knows
  std::uint64_t bytes = 0;                      // the size the guest asked for
  std::uint64_t driver_base = 0;                // what the driver must be given to free; 0: it lies in a pool's slab
  std::uint64_t backed_bytes = 0;               // what the driver was asked for; counted against limits
  std::uint64_t context = 0;                    // the CUcontext that owns the memory; the allocation dies with it
  policy::ExtentId extent = policy::kNoExtent;  // kNoExtent for all but Backing::Managed
  std::uint16_t device = 0;                     // ordinal of the device whose context allocated
  Backing backing = Backing::Managed;
  bool is_live =
      true;  // else the guest has freed it and a pool keeps the memory, and the extent, for the next of its size
};

// What a reader gets: enough to account a touch, small enough to stay in registers.
struct Hit {
  policy::ExtentId extent = policy::kNoExtent;
  std::uint32_t device = 0;
};

// A range of addresses that contains every managed allocation of the past and present: word - low < span is the
// cheapest first test.
struct Window {
  std::uint64_t low;
  std::uint64_t span;
};

class AllocationTable {
 public:
  // Devices that fit beside extent and size in a block's word.
  static constexpr std::uint32_t kMaxDevices = 1024;

  // Throws std::bad_alloc when not even the address space for the root can be had.
  AllocationTable();
  ~AllocationTable();
  AllocationTable(const AllocationTable&) = delete;
  AllocationTable& operator=(const AllocationTable&) = delete;

  // The extent of the managed allocation that holds `address`, else kNoExtent; one past the last byte asked for is not
  // held. A retired one is still found: who asks by a stale pointer must know what its extent is worth. Any thread, any
  // time, wait-free.
  [[nodiscard]] Hit find(std::uint64_t address) const noexcept {
    if (address >> kAddressBits != 0) return {};
    const Leaf* leaf = root_[address >> (kBlockShift + kLeafShift)].load(std::memory_order_acquire);
    if (leaf == nullptr) return {};
    const std::uint64_t word = leaf->words[(address >> kBlockShift) % kLeafWords].load(std::memory_order_relaxed);
    if (address % policy::kBlockBytes >= (word >> kUsedShift) % (policy::kBlockBytes * 2)) return {};
    return {static_cast<policy::ExtentId>(word), static_cast<std::uint32_t>(word >> kDeviceShift)};
  }

  [[nodiscard]] Window window() const noexcept {
    const std::uint64_t low = low_.load(std::memory_order_relaxed);
    const std::uint64_t high = high_.load(std::memory_order_relaxed);
    return {low, high > low ? high - low : 0};
  }

  // Assigns allocation.extent for Backing::Managed: the lowest free one, or, for an allocation that remove() handed
  // out, the one it had. False, with the table unchanged, when memory for the table itself cannot be had, the range is
  // empty, overlaps a live one or leaves the 57-bit address space, a managed base is not on a block boundary, or the
  // extent it asks back is not its to have.
  [[nodiscard]] bool insert(Allocation& allocation) noexcept;

  // Removes the allocation that starts at `base`; the caller frees the driver's memory AFTER this (addresses are
  // reused) and puts the entry back with insert() when the driver refuses. Its extent is not given out again before
  // release_extent(): whoever decides by extent must first hear of the free, or two allocations would be one to it.
  [[nodiscard]] std::optional<Allocation> remove(std::uint64_t base) noexcept;
  // The same for everything that `context` owns. Throws std::bad_alloc, with the table unchanged.
  [[nodiscard]] std::vector<Allocation> remove_context(std::uint64_t context);
  // Gives back the extent of a removed allocation; nothing happens for any other.
  void release_extent(policy::ExtentId extent) noexcept;

  // The guest has freed the allocation, its memory stays. Nothing happens for an extent without one.
  void retire(policy::ExtentId extent) noexcept;
  // It is the guest's again, as `bytes` of the same blocks.
  void revive(policy::ExtentId extent, std::uint64_t bytes) noexcept;

  // The whole record of the live allocation that holds `address` (slow path: takes the mutex).
  [[nodiscard]] std::optional<Allocation> lookup(std::uint64_t address) const noexcept;
  // Of a retired one as well.
  [[nodiscard]] std::optional<Allocation> lookup_extent(policy::ExtentId extent) const noexcept;

  [[nodiscard]] std::uint64_t live() const noexcept;  // records, those of retired allocations included

 private:
  // Linux gives user space at most 57 bits with five-level page tables
  // (Documentation/arch/x86/x86_64/5level-paging.rst).
  static constexpr unsigned kAddressBits = 57;
  static constexpr unsigned kBlockShift = 21;
  static constexpr unsigned kLeafShift = 14;
  static constexpr std::uint64_t kLeafWords = std::uint64_t{1} << kLeafShift;
  static constexpr std::uint64_t kRootEntries = std::uint64_t{1} << (kAddressBits - kBlockShift - kLeafShift);
  static_assert(std::uint64_t{1} << kBlockShift == policy::kBlockBytes);
  // A block's word: extent in bits 0-31, bytes in use in 32-53 (0: the block is free), device in 54-63.
  static constexpr unsigned kUsedShift = 32;
  static constexpr unsigned kDeviceShift = kUsedShift + kBlockShift + 1;
  static_assert(kMaxDevices == std::uint64_t{1} << (64 - kDeviceShift));

  struct Leaf {
    std::atomic<std::uint64_t> words[kLeafWords];
  };
  using Records = std::map<std::uint64_t, Allocation>;

  [[nodiscard]] std::atomic<std::uint64_t>& word_of(std::uint64_t address) noexcept;
  void map_leaves(std::uint64_t base, std::uint64_t end) HMSHIM_REQUIRES(mutex_);
  [[nodiscard]] bool is_held(policy::ExtentId extent) const HMSHIM_REQUIRES(mutex_);
  void claim_extent(Allocation& allocation) HMSHIM_REQUIRES(mutex_);
  void write_words(const Allocation& allocation) HMSHIM_REQUIRES(mutex_);
  void take_out(Records::iterator record) HMSHIM_REQUIRES(mutex_);
  [[nodiscard]] Allocation* record_of(policy::ExtentId extent) HMSHIM_REQUIRES(mutex_);
  [[nodiscard]] bool overlaps(std::uint64_t base, std::uint64_t end) const HMSHIM_REQUIRES(mutex_);

  std::atomic<Leaf*>* root_;
  std::atomic<std::uint64_t> low_{~std::uint64_t{0}};
  std::atomic<std::uint64_t> high_{0};

  // On a cache line of its own: allocating threads must not slow the readers of root_ down.
  alignas(64) mutable Mutex mutex_{LockRank::AllocationTable};
  Records records_ HMSHIM_GUARDED_BY(mutex_);  // by base
  std::vector<std::uint64_t> base_of_extent_ HMSHIM_GUARDED_BY(mutex_);
  // A heap, the lowest on top. It has room for every extent, so that giving one back cannot fail.
  std::vector<policy::ExtentId> free_extents_ HMSHIM_GUARDED_BY(mutex_);
};

}  // namespace hmshim::uvm
