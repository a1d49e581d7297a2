// Launches the kernel that stands for every kernel of cuBLAS and cuBLASLt.
#pragma once

#include <cuda.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "tests/frameworks/standins/product_arguments.hpp"

namespace hmshim::frameworks {

// Matrices in columns, one behind the other at `stride` elements.
struct Matrix {
  const void* address = nullptr;
  cudaDataType type = CUDA_R_32F;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::int64_t leading = 0;
  std::int64_t stride = 0;
  std::uint64_t count = 1;
};

[[nodiscard]] std::size_t element_bytes(cudaDataType type) noexcept;
// From the first element to the last.
[[nodiscard]] std::uint64_t extent_bytes(const Matrix& matrix) noexcept;

[[nodiscard]] Operand reads(const Matrix& matrix) noexcept;
[[nodiscard]] Operand updates(const Matrix& matrix) noexcept;
[[nodiscard]] Operand vector(const void* address, std::uint64_t bytes, int kind) noexcept;

// Operations a nanosecond of the devices that the profiles describe, in round figures and at half of the peak.
[[nodiscard]] std::uint64_t operations_per_ns(cudaDataType type) noexcept;

// CUDA_ERROR_NOT_FOUND without a driver; else the driver's own.
[[nodiscard]] CUresult launch_product(CUstream stream, std::initializer_list<Operand> operands,
                                      std::uint64_t operations, cudaDataType type);

}  // namespace hmshim::frameworks
