#include "tests/frameworks/standins/product.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <type_traits>

#include "tests/simgpu/simgpu.h"

// The image, as nvcc made it.
asm(".section .rodata\n.balign 16\nstandin_image:\n.incbin \"" STANDIN_IMAGE "\"\n.previous\n");
extern "C" const char standin_image[] __attribute__((visibility("hidden")));

namespace hmshim::frameworks {
namespace {

// cuBLAS opens the driver itself and asks it for names; so what interposes on dlsym is met here as there.
struct Driver {
  decltype(&cuLibraryLoadData) load = nullptr;
  decltype(&cuLibraryGetKernel) get_kernel = nullptr;
  decltype(&cuLaunchKernel) launch = nullptr;
  CUkernel kernel = nullptr;
  CUresult error = CUDA_ERROR_NOT_FOUND;
};

void open(Driver& driver) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return;
  const auto find = [library](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  if (!find("cuLibraryLoadData", driver.load) || !find("cuLibraryGetKernel", driver.get_kernel) ||
      !find("cuLaunchKernel", driver.launch)) {
    return;
  }
  CUlibrary image = nullptr;
  driver.error = driver.load(&image, standin_image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (driver.error == CUDA_SUCCESS) driver.error = driver.get_kernel(&driver.kernel, image, "standin_product");
}

// Never destroyed: programs multiply in exit handlers.
const Driver& driver() {
  static auto* const made = new Driver;
  static std::once_flag once;
  std::call_once(once, [] { open(*made); });
  return *made;
}

Operand operand(const Matrix& matrix, int kind) noexcept { return vector(matrix.address, extent_bytes(matrix), kind); }

}  // namespace

std::size_t element_bytes(cudaDataType type) noexcept {
  switch (type) {
    case CUDA_R_64F:
    case CUDA_C_32F:
      return 8;
    case CUDA_C_64F:
      return 16;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_8I:
    case CUDA_R_8U:
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
      return 1;
    default:
      return 4;
  }
}

std::uint64_t extent_bytes(const Matrix& matrix) noexcept {
  if (matrix.rows == 0 || matrix.columns == 0 || matrix.count == 0) return 0;
  const auto leading = static_cast<std::uint64_t>(std::max<std::int64_t>(matrix.leading, 0));
  const auto stride = static_cast<std::uint64_t>(std::max<std::int64_t>(matrix.stride, 0));
  return ((matrix.count - 1) * stride + (matrix.columns - 1) * leading + matrix.rows) * element_bytes(matrix.type);
}

Operand vector(const void* address, std::uint64_t bytes, int kind) noexcept {
  return {bytes == 0 ? 0 : reinterpret_cast<std::uint64_t>(address), bytes, static_cast<std::uint64_t>(kind)};
}
Operand reads(const Matrix& matrix) noexcept { return operand(matrix, SIMGPU_READ); }
Operand updates(const Matrix& matrix) noexcept { return operand(matrix, SIMGPU_READ_WRITE); }

std::uint64_t operations_per_ns(cudaDataType type) noexcept {
  switch (element_bytes(type)) {
    case 1:
      return 400'000;
    case 2:
      return 200'000;
    case 4:
      return 40'000;
    default:
      return 20'000;
  }
}

CUresult launch_product(CUstream stream, std::initializer_list<Operand> operands, std::uint64_t operations,
                        cudaDataType type) {
  const Driver& cuda = driver();
  if (cuda.error != CUDA_SUCCESS) return cuda.error;
  ProductArguments arguments{};
  std::copy_n(operands.begin(), std::min(operands.size(), std::size(arguments.operands)), arguments.operands);
  arguments.operations = operations;
  arguments.operations_per_ns = operations_per_ns(type);
  // Packed, as the newer kernels of cuBLAS are launched.
  std::size_t bytes = sizeof arguments;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  return cuda.launch(reinterpret_cast<CUfunction>(cuda.kernel), 128, 1, 1, 128, 1, 1, 0, stream, nullptr, extra);
}

}  // namespace hmshim::frameworks
