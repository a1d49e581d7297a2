#include "tests/simgpu/driver/errors.hpp"

#include <string>

#include "tests/simgpu/driver/cuda_api.hpp"

namespace hmshim::simgpu {
namespace {

struct Row {
  CUresult code;
  ErrorText text;
};

constexpr Row kErrors[] = {
#define SIMGPU_ERROR(driver_name, runtime_name, text) {driver_name, {#driver_name, text}},
#include "tests/simgpu/errors.def"
#undef SIMGPU_ERROR
};

}  // namespace

ErrorText error_text(int code) noexcept {
  for (const Row& row : kErrors) {
    if (row.code == code) return row.text;
  }
  return {nullptr, nullptr};
}

std::optional<int> error_code(std::string_view name_or_number) noexcept {
  for (const Row& row : kErrors) {
    if (row.code == CUDA_SUCCESS) continue;
    if (name_or_number == row.text.name || name_or_number == std::to_string(row.code)) return row.code;
  }
  return std::nullopt;
}

}  // namespace hmshim::simgpu

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = hmshim::simgpu::error_text(error).name;
  return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = hmshim::simgpu::error_text(error).text;
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // extern "C"
