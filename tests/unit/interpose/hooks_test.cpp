// The table itself, and what is counted by it.

// The types of old ABIs exist only with it.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfilerTypedefs.h>
#include <cudaTypedefs.h>
#include <gtest/gtest.h>

#include <barrier>
#include <regex>
#include <set>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "interpose/hook_counts.hpp"
#include "interpose/hook_id.hpp"
#include "interpose/real_driver.hpp"

namespace hmshim::interpose {
namespace {

struct Row {
  std::string_view base, symbol, flavour;
  int since;
  std::string_view why_passed;  // only of rows that are passed through
  bool is_passed;
};

constexpr Row kTable[] = {
#define HOOK(base, symbol, since, flavour, need, effect, params, args) {#base, #symbol, #flavour, since, "", false},
#define RESOLVE(base, symbol, since, flavour, params, args) {#base, #symbol, #flavour, since, "", false},
#define PASS(base, symbol, since, flavour, reason) {#base, #symbol, #flavour, since, reason, true},
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
};

TEST(HookTable, every_symbol_has_one_row) {
  std::set<std::string_view> seen;
  for (const Row& row : kTable) EXPECT_TRUE(seen.insert(row.symbol).second) << row.symbol;
}

TEST(HookTable, every_base_version_and_flavour_has_one_row) {
  std::set<std::tuple<std::string_view, int, std::string_view>> seen;
  for (const Row& row : kTable) EXPECT_TRUE(seen.insert({row.base, row.since, row.flavour}).second) << row.symbol;
}

TEST(HookTable, every_symbol_begins_with_its_base_and_ends_with_its_flavour) {
  for (const Row& row : kTable) {
    EXPECT_TRUE(row.symbol.starts_with(row.base)) << row.symbol;
    EXPECT_EQ(row.symbol.ends_with("_ptsz"), row.flavour == "ptsz") << row.symbol;
    EXPECT_EQ(row.symbol.ends_with("_ptds"), row.flavour == "ptds") << row.symbol;
  }
}

// What allocates, launches or tells about memory: each is wrapped, or one of these, which are passed through.
TEST(HookTable, nothing_that_allocates_launches_or_tells_about_memory_goes_by_unwatched) {
  const std::regex family(
      "cu(MemAlloc|MemHostAlloc|MemHostRegister|MemCreate|MemImport|MemPoolImport|ArrayCreate|Array3DCreate|"
      "MipmappedArrayCreate|GraphAddMemAlloc|IpcOpenMem|ImportExternalMemory|ExternalMemoryGetMapped|MulticastCreate|"
      "GraphicsResourceGetMapped|Launch|GraphLaunch|MemGetInfo|DeviceTotalMem|MemGetAddressRange|PointerGet|"
      "MemRangeGet|"
      "MemPoolGetAttribute|DeviceGetGraphMemAttribute).*");
  const std::set<std::string_view> expected = {
      // 32-bit pointers and sizes; no runtime since CUDA 3.2 asks for them
      "cuArray3DCreate", "cuArrayCreate", "cuDeviceTotalMem", "cuGraphicsResourceGetMappedPointer", "cuMemAlloc",
      "cuMemAllocHost", "cuMemAllocPitch", "cuMemGetAddressRange", "cuMemGetInfo",
      // operands set by cuParam*, gone since CUDA 4.0
      "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync",
      // host code
      "cuLaunchHostFunc", "cuLaunchHostFunc_ptsz",
      // memory that another process, API or call has allocated
      "cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuImportExternalMemory", "cuExternalMemoryGetMappedBuffer",
      "cuExternalMemoryGetMappedMipmappedArray", "cuGraphicsResourceGetMappedMipmappedArray",
      "cuGraphicsResourceGetMappedPointer_v2", "cuMemImportFromShareableHandle", "cuMemPoolImportFromShareableHandle",
      "cuMemPoolImportPointer", "cuMulticastCreate",
      // what graphs hold of the driver's own
      "cuDeviceGetGraphMemAttribute"};
  std::set<std::string_view> passed;
  for (const Row& row : kTable) {
    if (!row.is_passed || !std::regex_match(row.symbol.begin(), row.symbol.end(), family)) continue;
    passed.insert(row.symbol);
    EXPECT_NE(row.why_passed, "") << row.symbol;
  }
  EXPECT_EQ(passed, expected);
}

// That wrappers have the types of cudaTypedefs.h is checked where they are defined; here the rows that are passed
// through.
#define PFN_OF_legacy(type) type
#define PFN_OF_ptsz(type) type##_ptsz
#define PFN_OF_ptds(type) type##_ptds
#define HOOK(base, symbol, since, flavour, need, effect, params, args)
#define RESOLVE(base, symbol, since, flavour, params, args)
#define PASS(base, symbol, since, flavour, reason) \
  static_assert(sizeof(PFN_OF_##flavour(PFN_##base##_v##since)) == sizeof(void*));
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS

template <typename... Args>
CUresult succeeds(Args...) {
  return CUDA_SUCCESS;
}

RealDriver complete_driver() {
  RealDriver driver;
#define HOOK(base, symbol, since, flavour, need, effect, params, args) driver.symbol = &succeeds;
#define RESOLVE(base, symbol, since, flavour, params, args)
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
  return driver;
}

TEST(RequiredRows, a_complete_driver_lacks_none) { EXPECT_EQ(first_missing_required(complete_driver()), std::nullopt); }

TEST(RequiredRows, the_one_that_the_driver_lacks_is_named) {
  RealDriver driver = complete_driver();
  driver.cuMemFree_v2 = nullptr;
  EXPECT_EQ(first_missing_required(driver), HookId::cuMemFree_v2);
  EXPECT_FALSE(has(driver, HookId::cuMemFree_v2));
  EXPECT_TRUE(has(driver, HookId::cuMemAlloc_v2));
}

TEST(RequiredRows, optional_rows_may_be_absent) {
  RealDriver driver = complete_driver();
  driver.cuLaunchKernelEx = nullptr;
  driver.cuCtxSynchronize_v2 = nullptr;
  EXPECT_EQ(first_missing_required(driver), std::nullopt);
}

// More threads than shards: some count alone, the rest together.
TEST(HookCounts, add_up_over_threads) {
  constexpr std::uint64_t kThreads = 2 * detail::kCountShards;
  constexpr std::uint64_t kCalls = 10000;
  const std::uint64_t hits_before = hook_hits(HookId::cuLaunchKernel);
  const std::uint64_t bypasses_before = hook_bypasses(HookId::cuLaunchKernel);
  {
    std::barrier start(static_cast<std::ptrdiff_t>(kThreads));
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        for (std::uint64_t call = 0; call < kCalls; ++call) count_hit(HookId::cuLaunchKernel);
        count_bypass(HookId::cuLaunchKernel);
      });
    }
  }
  EXPECT_EQ(hook_hits(HookId::cuLaunchKernel) - hits_before, kThreads * kCalls);
  EXPECT_EQ(hook_bypasses(HookId::cuLaunchKernel) - bypasses_before, kThreads);
}

TEST(HookCounts, are_kept_apart_by_entry_point) {
  const std::uint64_t before = hook_hits(HookId::cuLaunchKernel_ptsz);
  count_hit(HookId::cuLaunchKernel);
  EXPECT_EQ(hook_hits(HookId::cuLaunchKernel_ptsz), before);
}

}  // namespace
}  // namespace hmshim::interpose
