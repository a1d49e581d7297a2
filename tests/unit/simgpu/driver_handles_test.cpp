#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/simgpu/driver/handles.hpp"
#include "tests/unit/simgpu/driver_gpu.hpp"

namespace {

using namespace driver_test;

const Image kImage = make_cubin("saxpy", {{0, 8}, {8, 8}});

template <class Handle>
Handle invented() {
  return reinterpret_cast<Handle>(0x7f1234567890);
}

TEST(DriverHandles, a_table_forgets_destroyed_objects_and_never_repeats_a_handle) {
  hmshim::simgpu::HandleTable<int, CUstream, hmshim::simgpu::HandleKind::Stream> table;
  const CUstream first = table.create(1);
  EXPECT_EQ(*table.find(first), 1);
  EXPECT_TRUE(table.destroy(first));
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_FALSE(table.destroy(first));
  const CUstream second = table.create(2);
  EXPECT_NE(first, second);
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_EQ(table.find(nullptr), nullptr);
  EXPECT_EQ(table.find(CU_STREAM_PER_THREAD), nullptr);
  EXPECT_EQ(table.live(), 1U);
}

TEST(DriverHandles, a_table_keeps_thousands_apart) {
  hmshim::simgpu::HandleTable<int, CUevent, hmshim::simgpu::HandleKind::Event> table;
  std::vector<CUevent> handles;
  for (int i = 0; i < 3000; ++i) handles.push_back(table.create(i));
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(*table.find(handles[static_cast<std::size_t>(i)]), i);
}

TEST(DriverHandles, nothing_works_before_cuInit_and_little_without_a_context) {
  int count = 0;
  CUdeviceptr address = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cuMemAlloc_v2(&address, 1), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cuInit(1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(cuMemAlloc_v2(&address, 1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuGraphLaunch(nullptr, nullptr), CUDA_ERROR_INVALID_CONTEXT);
}

TEST(DriverHandles, invented_stale_and_misplaced_handles_are_refused) {
  const Gpu gpu;
  EXPECT_EQ(cuStreamSynchronize(invented<CUstream>()), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventQuery(invented<CUevent>()), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuModuleUnload(invented<CUmodule>()), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuCtxSetCurrent(invented<CUcontext>()), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(Gpu::launch(invented<CUfunction>(), nullptr), CUDA_ERROR_INVALID_HANDLE);
  const CUstream stream = Gpu::stream();
  EXPECT_EQ(cuEventQuery(reinterpret_cast<CUevent>(stream)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
}

TEST(DriverHandles, kernels_and_functions_launch_alike_but_are_asked_apart) {
  const Gpu gpu;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, kImage.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "saxpy"), CUDA_SUCCESS);
  CUfunction function = nullptr;
  ASSERT_EQ(cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
  std::size_t offset = 0;
  std::size_t bytes = 0;
  EXPECT_EQ(cuKernelGetParamInfo(kernel, 1, &offset, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(offset, 8U);
  EXPECT_EQ(cuKernelGetParamInfo(kernel, 2, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetParamInfo(function, 1, &offset, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), 0, &offset, &bytes), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuKernelGetParamInfo(reinterpret_cast<CUkernel>(function), 0, &offset, &bytes), CUDA_ERROR_INVALID_HANDLE);
  std::uint64_t words[2] = {};
  void* parameters[] = {&words[0], &words[1]};
  EXPECT_EQ(Gpu::launch(function, parameters), CUDA_SUCCESS);
  EXPECT_EQ(Gpu::launch(reinterpret_cast<CUfunction>(kernel), parameters), CUDA_SUCCESS);
  EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  EXPECT_EQ(Gpu::launch(function, parameters), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(Gpu::launch(reinterpret_cast<CUfunction>(kernel), parameters), CUDA_ERROR_INVALID_HANDLE);
}

TEST(DriverHandles, a_function_belongs_to_the_context_it_was_loaded_in) {
  const Gpu gpu;
  const CUfunction function = Gpu::function(Gpu::module(kImage), "saxpy");
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
  std::uint64_t words[2] = {};
  void* parameters[] = {&words[0], &words[1]};
  EXPECT_EQ(Gpu::launch(function, parameters), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuCtxDestroy_v2(other), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(gpu.context()), CUDA_SUCCESS);
  EXPECT_EQ(Gpu::launch(function, parameters), CUDA_SUCCESS);
}

TEST(DriverHandles, a_destroyed_context_takes_what_lives_in_it_along) {
  const Gpu gpu;
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
  const CUdeviceptr address = Gpu::allocate(4 << 20);
  const CUstream stream = Gpu::stream();
  ASSERT_EQ(cuCtxSetCurrent(gpu.context()), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxDestroy_v2(other), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuCtxSetCurrent(other), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(Gpu::stats().live_allocations, 0U);
  EXPECT_EQ(Gpu::stats().live_streams, 0U);
}

TEST(DriverHandles, a_forked_child_cannot_use_the_driver) {
  const Gpu gpu;
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    const bool is_refused =
        cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(is_refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  int count = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
}

}  // namespace
