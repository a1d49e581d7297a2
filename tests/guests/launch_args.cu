// Launches by the driver API in each way that arguments and kernels can be named: kernelParams, one packed buffer in
// `extra`, a struct of 4 KB by value; a CUfunction and a CUkernel.
#include <cuda.h>

#include "tests/guests/sum.hpp"

namespace {

constexpr std::size_t kCount = std::size_t{1} << 20;

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: driver error %d\n", what, static_cast<int>(result));
  std::exit(1);
}

/// A driver function, found as the runtime itself finds it: the guest links to no libcuda.
template <typename Function>
Function* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  CHECK(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &status));
  if (status != cudaDriverEntryPointSuccess) {
    std::fprintf(stderr, "%s: the driver has none\n", name);
    std::exit(1);
  }
  return reinterpret_cast<Function*>(function);
}

/// Both kinds of handle that cuLaunchKernel takes.
struct Handles {
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;

  explicit Handles(const void* symbol) {
    CHECK(cudaGetKernel(&kernel, symbol));
    check_driver(driver_function<decltype(cuKernelGetFunction)>("cuKernelGetFunction")(&function, kernel),
                 "cuKernelGetFunction");
  }
};

void launch(CUfunction function, void** parameters, void** extra) {
  static auto* const launch_kernel = driver_function<decltype(cuLaunchKernel)>("cuLaunchKernel");
  check_driver(
      launch_kernel(function, guests::blocks(kCount), 1, 1, guests::kThreads, 1, 1, 0, nullptr, parameters, extra),
      "cuLaunchKernel");
}

/// Each way of passing arguments, to one handle.
void launch_each_way(const char* handle, CUfunction sum, CUfunction sum_struct) {
  const guests::Array one(kCount, 1);
  const guests::Array two(kCount, 2);
  const guests::Array by_parameters(kCount);
  const guests::Array by_extra(kCount);
  const guests::Array by_struct(kCount);

  float* out = by_parameters.data();
  const float* a = one.data();
  const float* b = two.data();
  std::size_t count = kCount;
  void* parameters[] = {&out, &a, &b, &count};
  launch(sum, parameters, nullptr);

  struct Packed {
    float* out;
    const float* a;
    const float* b;
    std::size_t count;
  } packed{by_extra.data(), by_parameters.data(), two.data(), kCount};
  std::size_t packed_bytes = sizeof(packed);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes,
                   CU_LAUNCH_PARAM_END};
  launch(sum, nullptr, extra);

  guests::SumArguments arguments{};
  arguments.out = by_struct.data();
  arguments.a = by_extra.data();
  arguments.b = two.data();
  arguments.count = kCount;
  void* struct_parameters[] = {&arguments};
  launch(sum_struct, struct_parameters, nullptr);

  std::printf("%s ", handle);
  by_parameters.print("kernelParams");  // 3
  std::printf("%s ", handle);
  by_extra.print("extra");  // 5
  std::printf("%s ", handle);
  by_struct.print("struct");  // 7
}

}  // namespace

int main() {
  CHECK(cudaFree(nullptr));  // makes the context
  const Handles sum(reinterpret_cast<const void*>(guest_sum));
  const Handles sum_struct(reinterpret_cast<const void*>(guest_sum_struct));
  launch_each_way("CUfunction", sum.function, sum_struct.function);
  launch_each_way("CUkernel", reinterpret_cast<CUfunction>(sum.kernel),
                  reinterpret_cast<CUfunction>(sum_struct.kernel));
}
