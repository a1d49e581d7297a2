#include "uvm/driver_api.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace hmshim::uvm {
namespace {

std::set<std::string> absent;  // symbols that the fake driver lacks
std::set<std::string> asked;

void* resolve_fake(const char* symbol) {
  asked.insert(symbol);
  static char code;
  return absent.contains(symbol) ? nullptr : &code;
}

TEST(DriverApi, every_row_is_asked_by_its_elf_symbol) {
  absent.clear();
  asked.clear();
  DriverApi api;
  EXPECT_EQ(resolve(api, resolve_fake), "");
#define DRIVER_CALL(member, type, symbol, need)  \
  EXPECT_TRUE(asked.contains(symbol)) << symbol; \
  EXPECT_NE(api.member, nullptr) << symbol;
#include "uvm/driver_api.def"
#undef DRIVER_CALL
  // The two ABIs of one base name stay apart although cuda.h defines the old name as the new one.
  EXPECT_TRUE(asked.contains("cuMemPrefetchAsync"));
  EXPECT_TRUE(asked.contains("cuMemPrefetchAsync_v2"));
}

TEST(DriverApi, a_missing_required_call_is_named) {
  absent = {"cuMemAllocManaged"};
  DriverApi api;
  EXPECT_EQ(resolve(api, resolve_fake), "cuMemAllocManaged");
}

TEST(DriverApi, a_missing_optional_call_is_null_and_no_complaint) {
  absent = {"cuMemPrefetchAsync_v2", "cuFuncGetParamInfo"};
  DriverApi api;
  EXPECT_EQ(resolve(api, resolve_fake), "");
  EXPECT_EQ(api.cuMemPrefetchAsync_v2, nullptr);
  EXPECT_EQ(api.cuFuncGetParamInfo, nullptr);
  EXPECT_NE(api.cuMemPrefetchAsync_v8000, nullptr);
}

TEST(DriverApi, the_clock_is_the_simulated_one_where_there_is_one) {
  DriverApi api;
  api.simgpu_now_ns = [] { return std::uint64_t{42}; };
  EXPECT_EQ(api.now_ns(), 42u);
}

TEST(DriverApi, the_clock_of_a_real_driver_never_goes_back) {
  const DriverApi api;
  const std::uint64_t first = api.now_ns();
  EXPECT_GT(first, 0u);
  EXPECT_GE(api.now_ns(), first);
}

}  // namespace
}  // namespace hmshim::uvm
