#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "tests/simgpu/model/model.hpp"

namespace hmshim::simgpu::machine {

/// A set of free address ranges, handed out lowest first.
class FreeRanges {
 public:
  FreeRanges(std::uint64_t begin, std::uint64_t end) : free_{{begin, end}} {}
  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t bytes, std::uint64_t alignment);
  void give_back(std::uint64_t address, std::uint64_t bytes);

 private:
  std::map<std::uint64_t, std::uint64_t> free_;  ///< begin → end, never adjacent
};

/// The addresses of all devices and of managed memory, and the host memory behind them.
/// Address arithmetic and mappings only: who owns a chunk of a device is Residency's job.
class AddressSpace {
 public:
  explicit AddressSpace(int device_count);
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  /// nullopt when the range is used up or the host refuses the mapping.
  [[nodiscard]] std::optional<std::uint64_t> allocate(MemoryKind kind, int device, std::uint64_t bytes);
  void release(std::uint64_t address);

  [[nodiscard]] const Allocation* find(std::uint64_t address) const;
  /// The allocation that contains the whole range.
  [[nodiscard]] const Allocation* find(std::uint64_t address, std::uint64_t bytes) const;
  /// True in the ranges this object hands out, allocated or not.
  [[nodiscard]] static bool is_ours(std::uint64_t address);
  /// Chunks that the live allocations of a device take: small ones share, so an allocation may need none of its own.
  [[nodiscard]] std::uint64_t chunks_held(int device) const { return spaces_[static_cast<std::size_t>(device)].chunks; }
  [[nodiscard]] std::size_t live_allocations() const { return allocations_.size(); }

  /// Bit i: the host has pages behind the i-th 64 KiB region. One block at most.
  [[nodiscard]] static std::uint32_t regions_in_core(std::uint64_t address, std::uint64_t bytes);
  /// Overwrites with kPoisonByte every page that exists; one that was never touched holds nothing to lose.
  static void poison(std::uint64_t address, std::uint64_t bytes);

 private:
  struct Space {
    explicit Space(std::uint64_t begin, std::uint64_t end) : ranges(begin, end) {}
    FreeRanges ranges;
    std::map<std::uint64_t, std::uint32_t> sharers;  ///< chunk address → small allocations in it
    std::uint64_t chunks = 0;
  };
  [[nodiscard]] Space& space_of(const Allocation& allocation);
  bool use_chunks(Space& space, std::uint64_t address, std::uint64_t bytes);
  void drop_chunks(Space& space, std::uint64_t address, std::uint64_t bytes);

  std::vector<Space> spaces_;  ///< one per device, the last one for managed memory
  std::map<std::uint64_t, Allocation> allocations_;
};

}  // namespace hmshim::simgpu::machine
