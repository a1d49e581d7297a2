#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/simgpu/driver_gpu.hpp"

namespace {

using namespace driver_test;

constexpr std::size_t kMiB = 1 << 20;

// kernel(long *out, {long a; long b;} pair, char c)
const Image kImage = make_cubin("combine", {{0, 8}, {8, 16}, {24, 1}});

void combine(const simgpu_launch* launch) {
  long* out = nullptr;
  long pair[2];
  char addend = 0;
  std::memcpy(&out, launch->parameters[0], sizeof out);
  std::memcpy(pair, launch->parameters[1], sizeof pair);
  std::memcpy(&addend, launch->parameters[2], sizeof addend);
  *out = pair[0] * pair[1] + addend + launch->grid[0] * 1000 + static_cast<long>(launch->parameter_count) * 10000 +
         static_cast<long>(launch->parameter_bytes[1]) * 100000;
}

long result_at(CUdeviceptr address) {
  long value = 0;
  EXPECT_EQ(cuMemcpyDtoH_v2(&value, address, sizeof value), CUDA_SUCCESS);
  return value;
}

constexpr long kExpected = 6 * 7 + 5 + 1 * 1000 + 3 * 10000 + 16 * 100000;

TEST(DriverLaunch, decodes_kernelParams_and_copies_them_at_the_call) {
  const Gpu gpu;
  simgpu_register("combine", combine);
  const CUfunction function = Gpu::function(Gpu::module(kImage), "combine");
  CUdeviceptr out = Gpu::allocate(8);
  long pair[] = {6, 7};
  char addend = 5;
  void* parameters[] = {&out, pair, &addend};
  ASSERT_EQ(Gpu::launch(function, parameters), CUDA_SUCCESS);
  pair[0] = 100;
  EXPECT_EQ(result_at(out), kExpected);
}

TEST(DriverLaunch, decodes_the_extra_buffer) {
  const Gpu gpu;
  simgpu_register("combine", combine);
  const CUfunction function = Gpu::function(Gpu::module(kImage), "combine");
  struct {
    CUdeviceptr out;
    long pair[2] = {6, 7};
    char addend = 5;
  } buffer;
  buffer.out = Gpu::allocate(8);
  std::size_t bytes = 25;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  ASSERT_EQ(Gpu::launch(function, nullptr, nullptr, extra), CUDA_SUCCESS);
  EXPECT_EQ(result_at(buffer.out), kExpected);
  bytes = 24;
  EXPECT_EQ(Gpu::launch(function, nullptr, nullptr, extra), CUDA_ERROR_INVALID_VALUE);
}

TEST(DriverLaunch, refuses_shapes_and_arguments_that_hardware_refuses) {
  const Gpu gpu;
  const CUfunction function = Gpu::function(Gpu::module(kImage), "combine");
  CUdeviceptr out = Gpu::allocate(8);
  long pair[] = {6, 7};
  char addend = 5;
  void* parameters[] = {&out, pair, &addend};
  const auto shaped = [&](unsigned grid_y, unsigned block_x, unsigned block_y, unsigned shared_bytes) {
    return cuLaunchKernel(function, 1, grid_y, 1, block_x, block_y, 1, shared_bytes, nullptr, parameters, nullptr);
  };
  EXPECT_EQ(shaped(0, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(shaped(65536, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(shaped(1, 1025, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(shaped(1, 512, 3, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(shaped(1, 1, 1, 49 << 10), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 96 << 10), CUDA_SUCCESS);
  EXPECT_EQ(shaped(1, 1, 1, 49 << 10), CUDA_SUCCESS);
  EXPECT_EQ(Gpu::launch(function, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST(DriverLaunch, a_kernel_without_body_touches_its_operands_from_the_pointer_to_the_end) {
  const Gpu gpu;
  const CUfunction function = Gpu::function(Gpu::module(kImage), "combine");
  const CUdeviceptr direct = Gpu::allocate_managed(8 * kMiB);
  const CUdeviceptr in_struct = Gpu::allocate_managed(4 * kMiB);
  CUdeviceptr out = direct + 4 * kMiB;
  CUdeviceptr pair[] = {12345, in_struct};
  char addend = 0;
  void* parameters[] = {&out, pair, &addend};
  ASSERT_EQ(Gpu::launch(function, parameters), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Gpu::stats().resident_bytes, 8 * kMiB);  // half of the first, all of the second
  EXPECT_EQ(Gpu::stats().kernels, 1U);
}

TEST(DriverLaunch, a_kernel_without_body_touches_no_more_than_the_tensor_that_the_runtime_told_of) {
  const Gpu gpu;
  const CUfunction function = Gpu::function(Gpu::module(kImage), "combine");
  const CUdeviceptr slab = Gpu::allocate_managed(16 * kMiB);
  CUdeviceptr out = slab + 4 * kMiB;
  CUdeviceptr pair[] = {0, 0};
  char addend = 0;
  void* parameters[] = {&out, pair, &addend};
  simgpu_note_tensor(out, 2 * kMiB);
  ASSERT_EQ(Gpu::launch(function, parameters), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Gpu::stats().resident_bytes, 2 * kMiB);
  simgpu_note_tensor(out, 0);
  ASSERT_EQ(Gpu::launch(function, parameters), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Gpu::stats().resident_bytes, 12 * kMiB);
}

TEST(DriverLaunch, a_word_that_points_into_memory_freed_in_stream_order_is_no_operand) {
  const Gpu gpu;
  const CUfunction function = Gpu::function(Gpu::module(kImage), "combine");
  CUdeviceptr freed = 0;
  ASSERT_EQ(cuMemAllocAsync(&freed, 4 * kMiB, nullptr), CUDA_SUCCESS);
  CUdeviceptr out = Gpu::allocate_managed(2 * kMiB);
  CUdeviceptr pair[] = {0, freed};
  char addend = 0;
  void* parameters[] = {&out, pair, &addend};
  ASSERT_EQ(Gpu::launch(function, parameters), CUDA_SUCCESS);  // keeps the free waiting
  ASSERT_EQ(cuMemFreeAsync(freed, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(Gpu::launch(function, parameters), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST(DriverLaunch, a_described_kernel_touches_and_takes_what_it_says) {
  const Gpu gpu;
  simgpu_register_footprint("combine", [](const simgpu_launch* launch, simgpu_footprint* footprint) {
    std::uint64_t address = 0;
    std::memcpy(&address, launch->parameters[0], sizeof address);
    simgpu_touch(footprint, address, 2 * kMiB, SIMGPU_READ_WRITE);
    simgpu_set_duration_ns(footprint, 5'000'000);
  });
  const CUfunction function = Gpu::function(Gpu::module(kImage), "combine");
  CUdeviceptr out = Gpu::allocate_managed(8 * kMiB);
  long pair[2] = {};
  char addend = 0;
  void* parameters[] = {&out, pair, &addend};
  ASSERT_EQ(Gpu::launch(function, parameters), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Gpu::stats().resident_bytes, 2 * kMiB);
  EXPECT_EQ(Gpu::stats().kernel_busy_ns, 5'000'000U);
  EXPECT_GE(simgpu_now_ns(), 5'000'000U);
}

TEST(DriverLaunch, a_host_function_may_not_call_the_driver) {
  const Gpu gpu;
  static CUresult seen;
  seen = CUDA_SUCCESS;
  ASSERT_EQ(cuLaunchHostFunc(
                Gpu::stream(), [](void*) { seen = cuCtxSynchronize(); }, nullptr),
            CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(seen, CUDA_ERROR_NOT_PERMITTED);
}

TEST(DriverLaunch, events_measure_virtual_time) {
  const Gpu gpu;
  simgpu_register_footprint("combine", [](const simgpu_launch*, simgpu_footprint* footprint) {
    simgpu_set_duration_ns(footprint, 2'000'000);
  });
  const CUfunction function = Gpu::function(Gpu::module(kImage), "combine");
  CUevent start = nullptr;
  CUevent end = nullptr;
  ASSERT_EQ(cuEventCreate(&start, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&end, 0), CUDA_SUCCESS);
  CUdeviceptr out = Gpu::allocate(8);
  long pair[2] = {};
  char addend = 0;
  void* parameters[] = {&out, pair, &addend};
  float milliseconds = 0;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuEventRecord(start, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(Gpu::launch(function, parameters), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(end, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cuEventSynchronize(end), CUDA_SUCCESS);
  ASSERT_EQ(cuEventElapsedTime(&milliseconds, start, end), CUDA_SUCCESS);
  EXPECT_GE(milliseconds, 2.0F);
  EXPECT_LT(milliseconds, 2.1F);
}

}  // namespace
