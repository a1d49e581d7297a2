#include "interpose/kernel_args.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace hmshim::interpose {
namespace {

using policy::ExtentId;
using policy::kBlockBytes;

struct Parameter {
  std::size_t offset;
  std::size_t size;
};

// Answers for two handles, each by its own question only, and counts the questions.
int function_handle;
int kernel_handle;
std::map<const void*, std::vector<Parameter>> parameters;
int questions = 0;

CUresult answer(const void* handle, const void* right, std::size_t index, std::size_t* offset, std::size_t* size) {
  ++questions;
  if (handle != right) return CUDA_ERROR_INVALID_HANDLE;
  const auto& of_handle = parameters[handle];
  if (index >= of_handle.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = of_handle[index].offset;
  *size = of_handle[index].size;
  return CUDA_SUCCESS;
}
CUresult function_info(CUfunction handle, std::size_t index, std::size_t* offset, std::size_t* size) {
  return answer(handle, &function_handle, index, offset, size);
}
CUresult kernel_info(CUkernel handle, std::size_t index, std::size_t* offset, std::size_t* size) {
  return answer(handle, &kernel_handle, index, offset, size);
}

class KernelArgs : public testing::Test {
 protected:
  KernelArgs() {
    parameters = {};
    questions = 0;
    driver.cuFuncGetParamInfo = function_info;
    driver.cuKernelGetParamInfo = kernel_info;
    for (int i = 0; i < 3; ++i) {
      uvm::Allocation allocation{.base = kBase + static_cast<std::uint64_t>(i) * 4 * kBlockBytes,
                                 .bytes = 3 * kBlockBytes};
      EXPECT_TRUE(table.insert(allocation));
      extents.push_back(allocation.extent);
      addresses.push_back(allocation.base);
    }
  }

  const ParamLayout* layout_of(std::vector<Parameter> of_function) {
    parameters[&function_handle] = std::move(of_function);
    layouts.learn(&function_handle, HandleKind::Function, &owner);
    return layouts.find(&function_handle, driver);
  }

  std::vector<ExtentId> collected(const ParamLayout& layout, void** kernel_params, void** extra) {
    Touched touched;
    collect_launch(layout, kernel_params, extra, table, touched);
    return {touched.extents().begin(), touched.extents().end()};
  }

  static constexpr std::uint64_t kBase = 0x7f00'0000'0000;
  uvm::DriverApi driver;
  uvm::AllocationTable table;
  KernelLayouts layouts;
  int owner = 0;
  std::vector<ExtentId> extents;
  std::vector<std::uint64_t> addresses;
};

TEST_F(KernelArgs, a_handle_is_asked_by_its_own_question_and_only_once) {
  parameters[&function_handle] = {{0, 8}};
  parameters[&kernel_handle] = {{0, 8}, {8, 4}};
  layouts.learn(&function_handle, HandleKind::Function, &owner);
  layouts.learn(&kernel_handle, HandleKind::Kernel, &owner);
  ASSERT_NE(layouts.find(&function_handle, driver), nullptr);
  ASSERT_NE(layouts.find(&kernel_handle, driver), nullptr);
  EXPECT_EQ(layouts.find(&kernel_handle, driver)->bytes, 12u);
  const int asked = questions;
  EXPECT_NE(layouts.find(&function_handle, driver), nullptr);
  EXPECT_EQ(questions, asked);
}

TEST_F(KernelArgs, an_unknown_handle_is_never_guessed_at) {
  EXPECT_EQ(layouts.find(&function_handle, driver), nullptr);
  EXPECT_EQ(questions, 0);
}

TEST_F(KernelArgs, a_driver_without_the_questions_leaves_launches_undecoded) {
  driver.cuFuncGetParamInfo = nullptr;
  EXPECT_EQ(layout_of({{0, 8}}), nullptr);
}

TEST_F(KernelArgs, an_unloaded_module_takes_its_handles_along_and_a_reused_handle_is_asked_anew) {
  ASSERT_NE(layout_of({{0, 8}}), nullptr);
  layouts.forget(&owner);
  EXPECT_EQ(layouts.find(&function_handle, driver), nullptr);
  const ParamLayout* again = layout_of({{0, 16}});
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->bytes, 16u);
}

TEST_F(KernelArgs, the_function_of_a_kernel_is_a_function_and_goes_with_the_kernels_library) {
  parameters[&function_handle] = {{0, 8}};
  layouts.learn(&kernel_handle, HandleKind::Kernel, &owner);
  layouts.learn_function_of(&function_handle, &kernel_handle);
  EXPECT_NE(layouts.find(&function_handle, driver), nullptr);
  layouts.forget(&owner);
  EXPECT_EQ(layouts.find(&function_handle, driver), nullptr);
}

TEST_F(KernelArgs, thousands_of_handles_are_kept_apart_while_the_index_grows) {
  std::vector<int> handles(5000);
  driver.cuFuncGetParamInfo = [](CUfunction handle, std::size_t index, std::size_t* offset, std::size_t* size) {
    if (index > 0) return CUDA_ERROR_INVALID_VALUE;
    *offset = 0;
    *size = reinterpret_cast<std::uintptr_t>(handle) / sizeof(int) % 16 * 8;
    return CUDA_SUCCESS;
  };
  for (const int& handle : handles) layouts.learn(&handle, HandleKind::Function, &owner);
  for (int round = 0; round < 2; ++round) {
    for (const int& handle : handles) {
      const ParamLayout* layout = layouts.find(&handle, driver);
      ASSERT_NE(layout, nullptr);
      ASSERT_EQ(layout->bytes, reinterpret_cast<std::uintptr_t>(&handle) / sizeof(int) % 16 * 8);
    }
  }
}

TEST_F(KernelArgs, pointers_are_found_in_plain_parameters_and_small_ones_are_not_read) {
  const ParamLayout* layout = layout_of({{0, 8}, {8, 4}, {16, 8}, {24, 1}, {32, 8}});
  ASSERT_NE(layout, nullptr);
  std::uint64_t first = addresses[1] + 5;
  int small = 1;
  double number = 3.5;
  std::uint64_t last = addresses[0];
  void* params[] = {&first, &small, &number, nullptr, &last};  // the one-byte parameter must not even be looked at
  EXPECT_EQ(collected(*layout, params, nullptr), (std::vector{extents[1], extents[0]}));
}

TEST_F(KernelArgs, pointers_are_found_inside_a_struct_of_4_KiB_wherever_they_are) {
  const ParamLayout* layout = layout_of({{0, 4096}});
  ASSERT_NE(layout, nullptr);
  for (std::size_t at = 0; at < 512; ++at) {
    std::vector<std::uint64_t> words(512, 0x1234);
    words[at] = addresses[2] + 3 * kBlockBytes - 1;
    void* params[] = {words.data()};
    EXPECT_EQ(collected(*layout, params, nullptr), std::vector{extents[2]}) << "word " << at;
  }
}

TEST_F(KernelArgs, one_past_the_end_and_gaps_between_allocations_name_nothing) {
  const ParamLayout* layout = layout_of({{0, 24}});
  ASSERT_NE(layout, nullptr);
  std::uint64_t words[] = {addresses[0] + 3 * kBlockBytes, addresses[0] - 1, ~std::uint64_t{0}};
  void* params[] = {words};
  EXPECT_TRUE(collected(*layout, params, nullptr).empty());
}

TEST_F(KernelArgs, a_packed_buffer_is_read_by_offsets) {
  const ParamLayout* layout = layout_of({{0, 4}, {8, 8}, {16, 16}});
  ASSERT_NE(layout, nullptr);
  std::uint64_t buffer[] = {1, addresses[0], 2, addresses[2]};
  std::size_t bytes = sizeof buffer;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  EXPECT_EQ(collected(*layout, nullptr, extra), (std::vector{extents[0], extents[2]}));
}

TEST_F(KernelArgs, a_packed_buffer_that_is_too_short_is_not_read_past_its_end) {
  const ParamLayout* layout = layout_of({{0, 8}, {8, 8}});
  ASSERT_NE(layout, nullptr);
  std::vector<std::uint64_t> buffer = {addresses[0]};  // on the heap: a sanitizer sees a read past it
  std::size_t bytes = sizeof(std::uint64_t);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_EQ(collected(*layout, nullptr, extra), std::vector{extents[0]});
}

TEST_F(KernelArgs, a_launch_without_parameters_names_nothing) {
  const ParamLayout* layout = layout_of({});
  ASSERT_NE(layout, nullptr);
  EXPECT_TRUE(collected(*layout, nullptr, nullptr).empty());
  void* nonsense[] = {reinterpret_cast<void*>(std::uintptr_t{77}), nullptr};
  EXPECT_TRUE(collected(*layout, nullptr, nonsense).empty());
}

}  // namespace
}  // namespace hmshim::interpose
