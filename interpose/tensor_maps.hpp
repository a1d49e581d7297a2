// Tensor map descriptors. A CUtensorMap goes to a kernel by value, 128 opaque bytes; the address of its tensor need not
// be among them as it is. So what the driver makes of an address is remembered by its content.
//
// Fixed room and no locks: a descriptor that has lost its place, or is taken for another, costs a wrong touch, no more.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "interpose/kernel_args.hpp"
#include "uvm/allocation_table.hpp"

namespace hmshim::interpose {

class TensorMaps {
 public:
  // After the driver has made `map` of `address`. Nothing is kept where the parameter scan would find the address
  // anyway.
  void learn(const CUtensorMap& map, const void* address) noexcept;

  // One load: asked at every launch.
  [[nodiscard]] bool are_known() const noexcept { return are_known_.load(std::memory_order_relaxed); }
  // The address behind the 128 bytes at `map`, 0 when they are no descriptor that was learned.
  [[nodiscard]] std::uint64_t find(const void* map) const noexcept;

  // Adds what the descriptors among a launch's parameters point to.
  void collect(const ParamLayout& layout, void** kernel_params, void** extra, const uvm::AllocationTable& table,
               Touched& out) const noexcept;

 private:
  static constexpr std::size_t kSlots = 4096;

  std::atomic<bool> are_known_{false};
  // Address in units of 16 bytes, which is its alignment (CUDA driver API, cuTensorMapEncodeTiled), and a tag above it.
  std::array<std::atomic<std::uint64_t>, kSlots> slots_{};
};

}  // namespace hmshim::interpose
