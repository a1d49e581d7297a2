#include "tests/unit/simgpu/model_gpu.hpp"

namespace hmshim::simgpu {
namespace {

TEST(ModelMemory, addresses_tell_their_kind_and_repeat_from_run_to_run) {
  std::vector<std::uint64_t> runs[2];
  for (auto& run : runs) {
    Gpu gpu;
    run = {gpu.device(100), gpu.managed(5000), gpu.device(3 << 20), gpu.managed(4 << 20)};
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0][0], Model::device_base(0));
  EXPECT_EQ(runs[0][1], Model::managed_base());
}

TEST(ModelMemory, the_lowest_free_address_is_reused_first) {
  Gpu gpu;
  const std::uint64_t first = gpu.managed(kBlockBytes);
  const std::uint64_t second = gpu.managed(kBlockBytes);
  const std::uint64_t third = gpu.managed(kBlockBytes);
  EXPECT_EQ(gpu.model.free_memory(third), Status::kOk);
  EXPECT_EQ(gpu.model.free_memory(first), Status::kOk);
  EXPECT_EQ(gpu.managed(kBlockBytes), first);
  EXPECT_EQ(gpu.managed(kBlockBytes), third);
  EXPECT_EQ(gpu.model.find_allocation(second + 5)->address, second);
}

TEST(ModelMemory, blocks_of_one_mebibyte_and_more_are_aligned_and_small_ones_share_a_chunk) {
  Gpu gpu;
  const std::uint64_t before = gpu.free_bytes();
  const std::uint64_t a = gpu.device(1000);
  const std::uint64_t b = gpu.device(1000);
  EXPECT_EQ(b - a, 1024);
  EXPECT_EQ(before - gpu.free_bytes(), kBlockBytes);
  EXPECT_EQ(gpu.device(1 << 20) % kBlockBytes, 0);
  EXPECT_EQ(before - gpu.free_bytes(), 2 * kBlockBytes);
  EXPECT_EQ(gpu.model.free_memory(a), Status::kOk);
  EXPECT_EQ(before - gpu.free_bytes(), 2 * kBlockBytes);
  EXPECT_EQ(gpu.model.free_memory(b), Status::kOk);
  EXPECT_EQ(before - gpu.free_bytes(), kBlockBytes);
}

TEST(ModelMemory, device_memory_ends_in_a_clean_out_of_memory) {
  Gpu gpu;
  const std::uint64_t all = gpu.device(4 * kBlockBytes);
  std::uint64_t address = 0;
  EXPECT_EQ(gpu.model.allocate_device(0, 1, &address), Status::kOutOfMemory);
  EXPECT_EQ(gpu.model.stats().live_allocations, 1);
  EXPECT_EQ(gpu.model.free_memory(all), Status::kOk);
  EXPECT_EQ(gpu.free_bytes(), 4 * kBlockBytes);
}

TEST(ModelMemory, managed_memory_may_exceed_the_device_until_it_is_touched) {
  Gpu gpu;
  gpu.managed(1ULL << 36);
  EXPECT_EQ(gpu.free_bytes(), 4 * kBlockBytes);
}

TEST(ModelMemory, a_wrong_address_or_size_is_refused) {
  Gpu gpu;
  const std::uint64_t address = gpu.managed(100);
  std::uint64_t unused = 0;
  EXPECT_EQ(gpu.model.allocate_device(0, 0, &unused), Status::kInvalidValue);
  EXPECT_EQ(gpu.model.allocate_device(1, 1, &unused), Status::kInvalidValue);
  EXPECT_EQ(gpu.model.allocate_managed(0, UINT64_MAX, &unused), Status::kOutOfMemory);
  EXPECT_EQ(gpu.model.free_memory(address + 8), Status::kInvalidValue);
  EXPECT_EQ(gpu.model.free_memory(address), Status::kOk);
  EXPECT_EQ(gpu.model.free_memory(address), Status::kInvalidValue);
  EXPECT_FALSE(gpu.model.find_allocation(address));
}

TEST(ModelMemory, freed_memory_faults) {
  Gpu gpu;
  const std::uint64_t address = gpu.managed(kBlockBytes);
  byte_at(address) = 1;
  EXPECT_EQ(gpu.model.free_memory(address), Status::kOk);
  EXPECT_DEATH(byte_at(address) = 2, "");
}

TEST(ModelMemory, reused_managed_memory_reads_as_zero) {
  Gpu gpu;
  const std::uint64_t address = gpu.managed(kBlockBytes);
  byte_at(address) = 1;
  EXPECT_EQ(gpu.model.free_memory(address), Status::kOk);
  EXPECT_EQ(gpu.managed(kBlockBytes), address);
  EXPECT_EQ(byte_at(address), 0);
}

TEST(ModelMemory, a_stream_ordered_free_happens_when_the_stream_gets_there) {
  Gpu gpu;
  const std::uint64_t address = gpu.device(kBlockBytes);
  gpu.launch({}, 1'000'000);
  EXPECT_EQ(gpu.model.free_async(gpu.stream, address), Status::kOk);
  EXPECT_EQ(gpu.model.free_memory(address), Status::kInvalidValue);
  EXPECT_EQ(gpu.free_bytes(), 3 * kBlockBytes);
  gpu.sync();
  EXPECT_EQ(gpu.free_bytes(), 4 * kBlockBytes);
}

TEST(ModelMemory, a_free_waits_for_the_work_of_its_device) {
  Gpu gpu;
  const std::uint64_t address = gpu.device(kBlockBytes);
  gpu.launch({}, 1'000'000);
  EXPECT_EQ(gpu.model.free_memory(address), Status::kOk);
  EXPECT_GE(gpu.model.now(), 1'000'000);
}

TEST(ModelMemory, a_second_model_is_refused_while_the_first_lives) {
  const Gpu gpu;
  EXPECT_THROW(
      Model(
          {.profile = round_profile(), .device_count = 1, .capacity_bytes = {}, .host_ram_bytes = {}, .on_stall = {}}),
      std::runtime_error);
}

}  // namespace
}  // namespace hmshim::simgpu
