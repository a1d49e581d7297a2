// Gives the guest's allocations their memory and takes it back: budget, driver and table in the one order that is safe,
// undone on failure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "uvm/allocation_table.hpp"
#include "uvm/device_budget.hpp"
#include "uvm/driver_api.hpp"
#include "uvm/result.hpp"

namespace hmshim::uvm {

// An allocation that is gone. As long as this object lives its extent belongs to no other, so keep it until the policy
// has heard of the free.
class Departed {
 public:
  Departed(AllocationTable& table, const Allocation& allocation) : table_(&table), allocation_(allocation) {}
  Departed(Departed&& other) noexcept : table_(std::exchange(other.table_, nullptr)), allocation_(other.allocation_) {}
  Departed& operator=(Departed&&) = delete;
  ~Departed() {
    if (table_ != nullptr) table_->release_extent(allocation_.extent);
  }

  [[nodiscard]] const Allocation& operator*() const noexcept { return allocation_; }
  [[nodiscard]] const Allocation* operator->() const noexcept { return &allocation_; }

 private:
  AllocationTable* table_;
  Allocation allocation_;
};

// What the driver gave, in whole blocks from a block boundary on where it is managed.
struct Memory {
  std::uint64_t base;
  std::uint64_t driver_base;
  std::uint64_t backed_bytes;
};

// All calls may be made by any thread, with the owning context current where the driver asks for one; no lock is held
// while the driver works. An error carries the driver's own code, or CUDA_ERROR_OUT_OF_MEMORY with the limit that was
// in the way.
class BackingStore {
 public:
  BackingStore(const DriverApi& api, AllocationTable& table, DeviceBudget& budget)
      : api_(api), table_(table), budget_(budget) {}

  // `bytes` of memory for `device`, owned by `context`. Managed memory is rounded up to whole blocks and begins on a
  // block boundary: the driver orders victims only among full 2 MiB blocks (block_mark_memory_used, uvm_va_block.c).
  // Remote memory needs a driver that takes advice.
  [[nodiscard]] Result<Allocation> allocate(std::uint64_t bytes, std::uint16_t device, std::uint64_t context,
                                            Backing backing);

  // The same without an entry in the table: memory for a pool, which enters what it makes of it.
  [[nodiscard]] Result<Memory> take(std::uint64_t bytes, std::uint16_t device, Backing backing);
  // Gives such memory back to the driver. With an error it is still the pool's.
  [[nodiscard]] CUresult give_back(const Memory& memory, std::uint16_t device, Backing backing);
  // The driver has taken it back itself, with its context.
  void lost(const Memory& memory, std::uint16_t device, Backing backing) {
    budget_.release(device, memory.backed_bytes, backing);
  }

  // Enters what the guest allocates itself by `allocate`, a callable that takes a CUdeviceptr* and returns CUresult, as
  // `described` but for its address.
  template <class Allocate>
  [[nodiscard]] Result<Allocation> adopt(const Allocation& described, Allocate&& allocate) {
    if (const auto limit = budget_.reserve(described.device, described.backed_bytes, described.backing))
      return Error{CUDA_ERROR_OUT_OF_MEMORY, *limit};
    CUdeviceptr address = 0;
    if (const CUresult code = std::forward<Allocate>(allocate)(&address); code != CUDA_SUCCESS) {
      budget_.release(described.device, described.backed_bytes, described.backing);
      return Error{code, Reason::DriverRefused};
    }
    Allocation allocation = described;
    allocation.base = allocation.driver_base = address;
    return enter(allocation);
  }

  // Frees the allocation that begins at `base`. NotOurs (CUDA_ERROR_INVALID_VALUE) when there is none: the address is
  // the driver's business.
  [[nodiscard]] Result<Departed> free(std::uint64_t base);

  // Destroys a context by `destroy`, a callable that returns CUresult. Its allocations leave the table before, since
  // their addresses may be reused at once, and come back when `destroy` fails.
  template <class Destroy>
  [[nodiscard]] Result<std::vector<Departed>> destroy_context(std::uint64_t context, Destroy&& destroy) {
    std::vector<Allocation> leaving = table_.remove_context(context);
    if (const CUresult code = std::forward<Destroy>(destroy)(); code != CUDA_SUCCESS) {
      for (Allocation& allocation : leaving) put_back(allocation);
      return Error{code, Reason::DriverRefused};
    }
    return depart(leaving);
  }

 private:
  [[nodiscard]] Result<Memory> reserve_and_back(std::uint64_t bytes, std::uint16_t device, Backing backing);
  void undo(const Memory& memory, std::uint16_t device, Backing backing);
  [[nodiscard]] Result<Allocation> enter(Allocation allocation);
  void put_back(Allocation& allocation);
  [[nodiscard]] std::vector<Departed> depart(const std::vector<Allocation>& allocations);

  const DriverApi& api_;
  AllocationTable& table_;
  DeviceBudget& budget_;
};

}  // namespace hmshim::uvm
