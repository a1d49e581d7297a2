// Which addresses a copy names, and whether they are ours. The extent is what matters to the policy, so the first byte
// of each side is enough: a range lies within one allocation.
#pragma once

#include <cuda.h>

#include <array>

#include "interpose/kernel_args.hpp"
#include "uvm/allocation_table.hpp"

namespace hmshim::interpose {

inline void touch(const uvm::AllocationTable& allocations, CUdeviceptr address, Touched& out) noexcept {
  if (const uvm::Hit hit = allocations.find(address); hit.extent != policy::kNoExtent) out.add(hit);
}

// The side of a 2D or 3D copy that is linear memory and may be ours; 0 for array and host sides, which are not.
[[nodiscard]] inline CUdeviceptr linear_side(CUmemorytype type, CUdeviceptr device) noexcept {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? device : 0;
}

// CUDA_MEMCPY2D, CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER name their fields alike.
template <class Copy>
[[nodiscard]] std::array<CUdeviceptr, 2> sides_of(const Copy& copy) noexcept {
  return {linear_side(copy.dstMemoryType, copy.dstDevice), linear_side(copy.srcMemoryType, copy.srcDevice)};
}

[[nodiscard]] inline std::array<CUdeviceptr, 2> sides_of(const CUDA_MEMCPY3D_BATCH_OP& copy) noexcept {
  const auto side = [](const CUmemcpy3DOperand& operand) {
    return operand.type == CU_MEMCPY_OPERAND_TYPE_POINTER ? operand.op.ptr.ptr : CUdeviceptr{0};
  };
  return {side(copy.dst), side(copy.src)};
}

}  // namespace hmshim::interpose
