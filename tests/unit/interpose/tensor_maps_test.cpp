#include "interpose/tensor_maps.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

namespace hmshim::interpose {
namespace {

constexpr std::uint64_t kBase = 0x7f00'0000'0000;

// An opaque descriptor, told from others by `seed`.
CUtensorMap descriptor(std::uint64_t seed) {
  CUtensorMap map{};
  for (auto& word : map.opaque) word = static_cast<cuuint64_t>(seed = seed * 6364136223846793005ULL + 1);
  return map;
}

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

TEST(TensorMaps, are_found_again_by_their_content) {
  TensorMaps maps;
  EXPECT_FALSE(maps.are_known());
  maps.learn(descriptor(1), pointer(kBase + 16));
  maps.learn(descriptor(2), pointer(kBase + 4096));
  EXPECT_TRUE(maps.are_known());
  const CUtensorMap copy = descriptor(1);
  EXPECT_EQ(maps.find(&copy), kBase + 16);
  const CUtensorMap other = descriptor(3);
  EXPECT_EQ(maps.find(&other), 0U);
}

TEST(TensorMaps, that_show_their_address_need_no_place) {
  TensorMaps maps;
  CUtensorMap map = descriptor(1);
  map.opaque[5] = kBase;
  maps.learn(map, pointer(kBase));
  EXPECT_FALSE(maps.are_known());
}

TEST(TensorMaps, addresses_of_all_bits_come_back) {
  TensorMaps maps;
  const std::uint64_t highest = (std::uint64_t{1} << 57) - 16;
  maps.learn(descriptor(1), pointer(highest));
  const CUtensorMap copy = descriptor(1);
  EXPECT_EQ(maps.find(&copy), highest);
}

class TensorMapArguments : public testing::Test {
 protected:
  TensorMapArguments() {
    uvm::Allocation allocation{.base = kBase, .bytes = policy::kBlockBytes};
    EXPECT_TRUE(table.insert(allocation));
    extent = allocation.extent;
    maps.learn(descriptor(1), pointer(kBase + 64));
    const CUtensorMap known = descriptor(1);
    std::memcpy(data + 128, &known, sizeof known);
  }

  std::vector<policy::ExtentId> collected(const ParamLayout& layout, void** params, void** extra) {
    Touched touched;
    maps.collect(layout, params, extra, table, touched);
    return {touched.extents().begin(), touched.extents().end()};
  }

  uvm::AllocationTable table;
  TensorMaps maps;
  policy::ExtentId extent = 0;
  alignas(64) unsigned char data[320] = {};
};

TEST_F(TensorMapArguments, are_found_inside_a_struct_passed_in_either_way) {
  const ParamLayout layout{.params = {{.index = 0, .offset = 0, .words = 40}}, .bytes = 320};
  void* params[] = {data};
  EXPECT_EQ(collected(layout, params, nullptr), std::vector{extent});
  std::size_t bytes = sizeof data;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, data, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  EXPECT_EQ(collected(layout, nullptr, extra), std::vector{extent});
}

TEST_F(TensorMapArguments, are_found_at_the_offsets_that_the_compiler_gives_them) {
  const ParamLayout layout{.params = {{.index = 0, .offset = 48, .words = 40}}, .bytes = 368};
  void* params[] = {data};
  EXPECT_EQ(collected(layout, params, nullptr), std::vector{extent});
}

TEST_F(TensorMapArguments, are_not_read_past_the_end_of_a_short_buffer) {
  const ParamLayout layout{.params = {{.index = 0, .offset = 0, .words = 40}}, .bytes = 320};
  std::size_t bytes = 200;
  const auto short_data = std::make_unique<unsigned char[]>(bytes);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, short_data.get(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_TRUE(collected(layout, nullptr, extra).empty());
}

TEST_F(TensorMapArguments, too_small_parameters_are_none) {
  const ParamLayout layout{.params = {{.index = 0, .offset = 0, .words = 15}}, .bytes = 120};
  void* params[] = {data + 128};
  EXPECT_TRUE(collected(layout, params, nullptr).empty());
}

}  // namespace
}  // namespace hmshim::interpose
