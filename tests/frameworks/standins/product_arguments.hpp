// What the one kernel of the stand-ins for cuBLAS and cuBLASLt is given, by value, as the kernels of the real ones are.
#pragma once

#include <cstdint>

namespace hmshim::frameworks {

struct Operand {
  std::uint64_t address;  // 0: not there
  std::uint64_t bytes;
  std::uint64_t kind;  // SIMGPU_READ, SIMGPU_WRITE or both
};

inline constexpr int kMaxOperands = 8;

struct ProductArguments {
  Operand operands[kMaxOperands];
  std::uint64_t operations;         // multiplications and additions
  std::uint64_t operations_per_ns;  // of the device, in the operands' type
};

}  // namespace hmshim::frameworks
