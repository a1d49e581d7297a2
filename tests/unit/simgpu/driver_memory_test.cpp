#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/unit/simgpu/driver_gpu.hpp"

namespace {

using namespace driver_test;

constexpr std::size_t kMiB = 1 << 20;

TEST(DriverMemory, sizes_and_pointers_that_make_no_sense_are_refused) {
  const Gpu gpu;
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc_v2(nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocManaged(&address, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocManaged(&address, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc_v2(&address, 65 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  address = Gpu::allocate(kMiB);
  EXPECT_EQ(cuMemFree_v2(address + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(0x123456), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(reinterpret_cast<void*>(address)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

TEST(DriverMemory, stream_ordered_memory_is_freed_either_way_but_plain_memory_only_one) {
  const Gpu gpu;
  const CUstream stream = Gpu::stream();
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAllocAsync(&address, kMiB, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(address, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(address, stream), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemAllocAsync(&address, kMiB, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(address), CUDA_SUCCESS);
  address = Gpu::allocate(kMiB);
  EXPECT_EQ(cuMemFreeAsync(address, stream), CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool pool = nullptr;
  cuuint64_t used = 1;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), CUDA_SUCCESS);
  EXPECT_EQ(used, 0U);
}

TEST(DriverMemory, attributes_tell_device_managed_pinned_and_unknown_memory_apart) {
  const Gpu gpu;
  const CUdeviceptr device = Gpu::allocate(kMiB);
  const CUdeviceptr managed = Gpu::allocate_managed(kMiB);
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, kMiB, 0), CUDA_SUCCESS);
  const auto ask = [](CUdeviceptr address) {
    unsigned type = 99;
    unsigned is_managed = 99;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void* data[] = {&type, &is_managed};
    EXPECT_EQ(cuPointerGetAttributes(2, which, data, address), CUDA_SUCCESS);
    return std::pair(type, is_managed);
  };
  EXPECT_EQ(ask(device + 100), std::pair(unsigned{CU_MEMORYTYPE_DEVICE}, 0U));
  EXPECT_EQ(ask(managed + 100), std::pair(unsigned{CU_MEMORYTYPE_DEVICE}, 1U));
  EXPECT_EQ(ask(reinterpret_cast<CUdeviceptr>(pinned)), std::pair(unsigned{CU_MEMORYTYPE_HOST}, 0U));
  int local = 0;
  EXPECT_EQ(ask(reinterpret_cast<CUdeviceptr>(&local)), std::pair(0U, 0U));
  EXPECT_EQ(cuPointerGetAttribute(&local, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, reinterpret_cast<CUdeviceptr>(&local)),
            CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &bytes, device + kMiB - 1), CUDA_SUCCESS);
  EXPECT_EQ(base, device);
  EXPECT_EQ(bytes, kMiB);
}

TEST(DriverMemory, copies_carry_data_and_stay_inside_their_allocations) {
  const Gpu gpu;
  std::vector<std::uint32_t> source(kMiB / 4);
  std::iota(source.begin(), source.end(), 0U);
  std::vector<std::uint32_t> target(source.size());
  const CUdeviceptr first = Gpu::allocate(kMiB);
  const CUdeviceptr second = Gpu::allocate_managed(kMiB);
  ASSERT_EQ(cuMemcpyHtoD_v2(first, source.data(), kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoD_v2(second, first, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoH_v2(target.data(), second, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(source, target);
  EXPECT_EQ(cuMemcpyHtoD_v2(first + 4, source.data(), kMiB), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD_v2(0x1000, source.data(), 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8_v2(first + kMiB - 1, 0, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD32_v2(first + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST(DriverMemory, an_asynchronous_copy_from_pageable_memory_has_read_it_on_return) {
  const Gpu gpu;
  const CUdeviceptr address = Gpu::allocate(4096);
  std::vector<unsigned char> source(4096, 1);
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(address, source.data(), source.size(), Gpu::stream()), CUDA_SUCCESS);
  std::fill(source.begin(), source.end(), std::uint8_t{2});
  std::vector<unsigned char> target(4096);
  ASSERT_EQ(cuMemcpyDtoH_v2(target.data(), address, target.size()), CUDA_SUCCESS);
  EXPECT_EQ(target, std::vector<unsigned char>(4096, 1));
}

TEST(DriverMemory, pitched_copies_and_fills_leave_the_padding_alone) {
  const Gpu gpu;
  CUdeviceptr address = 0;
  std::size_t pitch = 0;
  ASSERT_EQ(cuMemAllocPitch_v2(&address, &pitch, 100, 3, 4), CUDA_SUCCESS);
  ASSERT_GE(pitch, 100U);
  ASSERT_EQ(cuMemsetD8_v2(address, 7, pitch * 3), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD2D8_v2(address, pitch, 9, 100, 3), CUDA_SUCCESS);
  std::vector<unsigned char> all(pitch * 3);
  ASSERT_EQ(cuMemcpyDtoH_v2(all.data(), address, all.size()), CUDA_SUCCESS);
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i % pitch < 100 ? 9 : 7) << i;
  std::vector<unsigned char> rows(300);
  CUDA_MEMCPY2D shape{};
  shape.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  shape.srcDevice = address;
  shape.srcPitch = pitch;
  shape.dstMemoryType = CU_MEMORYTYPE_HOST;
  shape.dstHost = rows.data();
  shape.WidthInBytes = 100;
  shape.Height = 3;
  ASSERT_EQ(cuMemcpy2D_v2(&shape), CUDA_SUCCESS);
  EXPECT_EQ(rows, std::vector<unsigned char>(300, 9));
  shape.dstPitch = 50;
  EXPECT_EQ(cuMemcpy2D_v2(&shape), CUDA_ERROR_INVALID_VALUE);
}

TEST(DriverMemory, prefetch_advise_and_batches_keep_to_the_header) {
  const Gpu gpu;
  const CUstream stream = Gpu::stream();
  CUdeviceptr managed = Gpu::allocate_managed(4 * kMiB);
  const CUdeviceptr device = Gpu::allocate(kMiB);
  EXPECT_EQ(cuMemPrefetchAsync(managed, 4 * kMiB, 0, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPrefetchAsync(managed, 4 * kMiB, CU_DEVICE_CPU, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPrefetchAsync(managed, 4 * kMiB, 1, stream), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuMemPrefetchAsync(managed, 5 * kMiB, 0, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPrefetchAsync(device, kMiB, 0, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPrefetchAsync_v2(managed, kMiB, {CU_MEM_LOCATION_TYPE_DEVICE, {0}}, 1, stream),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAdvise(managed, 4 * kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAdvise(device, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
  int preferred = 99;
  EXPECT_EQ(cuMemRangeGetAttribute(&preferred, sizeof preferred, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, managed,
                                   4 * kMiB),
            CUDA_SUCCESS);
  EXPECT_EQ(preferred, CU_DEVICE_CPU);
  std::size_t bytes = 4 * kMiB;
  EXPECT_EQ(cuMemDiscardBatchAsync(&managed, &bytes, 1, 0, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemDiscardBatchAsync(&managed, &bytes, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemDiscardBatchAsync(&managed, &bytes, 1, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  std::size_t first = 1;
  EXPECT_EQ(cuMemPrefetchBatchAsync(&managed, &bytes, 1, &location, &first, 1, 0, stream), CUDA_ERROR_INVALID_VALUE);
  first = 0;
  EXPECT_EQ(cuMemPrefetchBatchAsync(&managed, &bytes, 1, &location, &first, 1, 0, stream), CUDA_SUCCESS);
}

TEST(DriverMemory, managed_memory_may_exceed_the_device_and_free_memory_counts_chunks) {
  const Gpu gpu;
  std::size_t free_before = 0;
  std::size_t total = 0;
  ASSERT_EQ(cuMemGetInfo_v2(&free_before, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, 64 * kMiB);
  const CUdeviceptr managed = Gpu::allocate_managed(128 * kMiB);
  std::size_t free_after = 0;
  ASSERT_EQ(cuMemGetInfo_v2(&free_after, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(free_after, free_before);
  ASSERT_EQ(cuMemsetD8_v2(managed, 1, 128 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_GT(Gpu::stats().d2h_eviction_bytes, 0U);
  EXPECT_LE(Gpu::stats().peak_resident_bytes, 64 * kMiB);
}

}  // namespace
