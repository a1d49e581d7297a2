// Address → allocation. Written under a mutex at alloc and free, read without a lock, a fence or a wait at every launch.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "policy/vocabulary.hpp"

namespace hmshim::uvm {

// Where the bytes of an allocation of the guest live.
enum class Backing : std::uint8_t {
  Managed,  // ours: cuMemAllocManaged in the place of device memory
  Device,   // real device memory: too small to be worth managing, or excluded
};

struct Allocation {
  std::uint64_t base;          // the address the guest knows
  std::uint64_t bytes;         // the size the guest asked for
  std::uint64_t driver_base;   // what the driver must be given to free
  std::uint64_t backed_bytes;  // what the driver was asked for; counted against limits
  policy::ExtentId extent;     // kNoExtent for Backing::Device
  std::uint16_t device;        // ordinal of the device whose context allocated
  Backing backing;
};

// What a reader gets: enough to account a touch, small enough to stay in registers.
struct Hit {
  policy::ExtentId extent = policy::kNoExtent;
  std::uint32_t device = 0;
};

class AllocationTable {
 public:
  AllocationTable();
  ~AllocationTable();
  AllocationTable(const AllocationTable&) = delete;
  AllocationTable& operator=(const AllocationTable&) = delete;

  // The extent of the managed allocation that holds `address`, else kNoExtent. Any thread, any time, wait-free.
  [[nodiscard]] Hit find(std::uint64_t address) const noexcept;

  // Assigns allocation.extent for Backing::Managed. False when memory for the table itself cannot be had, or the range
  // overlaps a live one; the table is then unchanged.
  [[nodiscard]] bool insert(Allocation& allocation) noexcept;

  // Removes the allocation that starts at `base`; the caller frees the driver's memory AFTER this (addresses are reused) and puts the
  // entry back with insert() when the driver refuses.
  [[nodiscard]] std::optional<Allocation> remove(std::uint64_t base) noexcept;

  // The whole record of the allocation that holds `address` (slow path: takes the mutex).
  [[nodiscard]] std::optional<Allocation> lookup(std::uint64_t address) const noexcept;
  [[nodiscard]] std::optional<Allocation> lookup_extent(policy::ExtentId extent) const noexcept;

  [[nodiscard]] std::uint64_t live() const noexcept;

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace hmshim::uvm
