#include "interpose/lookup.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hmshim::interpose {
namespace {

// ---- a driver that answers as cuda.h says cuGetProcAddress does ----
struct Export {
  std::string base;
  int since;
  bool is_per_thread;
  int address;
};

struct Driver {
  int version;
  std::vector<Export> exports;
};

// AskDriver is a plain function: the driver it speaks for stands here.
const Driver* driver_asked = nullptr;
int asks = 0;

const void* ask(const char* base, int version, cuuint64_t flags) {
  ++asks;
  if (version > driver_asked->version) return nullptr;
  const Export* best = nullptr;
  for (const Export& candidate : driver_asked->exports) {
    if (candidate.base != base || candidate.since > version) continue;
    if (candidate.is_per_thread && flags != CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) continue;
    const bool is_better = best == nullptr || candidate.is_per_thread > best->is_per_thread ||
                           (candidate.is_per_thread == best->is_per_thread && candidate.since > best->since);
    if (is_better) best = &candidate;
  }
  return best != nullptr ? &best->address : nullptr;
}

// The row that the answer to a guest's ask stands for: its symbol, or "none".
std::string row_of_ask(const Driver& driver, const char* base, int version, cuuint64_t flags) {
  driver_asked = &driver;
  const LookupRow* row = find_answer(base, version, ask(base, version, flags), ask);
  return row != nullptr ? row->symbol : "none";
}

const Driver kCurrent = {13000,
                         {{"cuMemAlloc", 2000, false, 0},
                          {"cuMemAlloc", 3020, false, 0},
                          {"cuLaunchKernel", 4000, false, 0},
                          {"cuLaunchKernel", 7000, true, 0},
                          {"cuStreamBeginCapture", 10000, false, 0},
                          {"cuStreamBeginCapture", 10000, true, 0},
                          {"cuStreamBeginCapture", 10010, false, 0},
                          {"cuStreamBeginCapture", 10010, true, 0},
                          {"cuCtxSynchronize", 2000, false, 0},
                          {"cuCtxSynchronize", 13000, false, 0},
                          {"cuGetProcAddress", 11030, false, 0},
                          {"cuGetProcAddress", 12000, false, 0}}};

TEST(LookupBySymbol, finds_every_hooked_export_and_only_by_its_whole_name) {
  for (const std::string_view symbol : kHookSymbols) {
    const std::string name(symbol);
    const LookupRow* row = find_symbol(name.c_str());
    ASSERT_NE(row, nullptr) << name;
    EXPECT_EQ(row->symbol, symbol);
    EXPECT_EQ(to_string(row->id), symbol);
    EXPECT_EQ(find_symbol((name + "x").c_str()), nullptr);
  }
}

TEST(LookupBySymbol, leaves_other_names_alone) {
  for (const char* name : {"", "c", "cu", "cuMemAlloc", "cuMemAllo", "cuMemAlloc_v", "cuMemAlloc_v22", "CUINIT",
                           "cuinit", "cudnnCreate", "cudaMalloc", "cuZ", "dlsym", "malloc"}) {
    EXPECT_EQ(find_symbol(name), nullptr) << name;
  }
  EXPECT_EQ(find_symbol(nullptr), nullptr);
}

TEST(LookupByAnswer, tells_the_abis_of_one_base_apart_by_version) {
  EXPECT_EQ(row_of_ask(kCurrent, "cuStreamBeginCapture", 10000, 0), "cuStreamBeginCapture");
  EXPECT_EQ(row_of_ask(kCurrent, "cuStreamBeginCapture", 10009, 0), "cuStreamBeginCapture");
  EXPECT_EQ(row_of_ask(kCurrent, "cuStreamBeginCapture", 10010, 0), "cuStreamBeginCapture_v2");
  EXPECT_EQ(row_of_ask(kCurrent, "cuStreamBeginCapture", 13000, 0), "cuStreamBeginCapture_v2");
  EXPECT_EQ(row_of_ask(kCurrent, "cuCtxSynchronize", 12090, 0), "cuCtxSynchronize");
  EXPECT_EQ(row_of_ask(kCurrent, "cuCtxSynchronize", 13000, 0), "cuCtxSynchronize_v2");
  EXPECT_EQ(row_of_ask(kCurrent, "cuGetProcAddress", 11030, 0), "cuGetProcAddress");
  EXPECT_EQ(row_of_ask(kCurrent, "cuGetProcAddress", 12000, 0), "cuGetProcAddress_v2");
}

TEST(LookupByAnswer, leaves_an_abi_that_is_passed_through_to_the_driver) {
  EXPECT_EQ(row_of_ask(kCurrent, "cuMemAlloc", 2000, 0), "none");
  EXPECT_EQ(row_of_ask(kCurrent, "cuMemAlloc", 3010, 0), "none");
  EXPECT_EQ(row_of_ask(kCurrent, "cuMemAlloc", 3020, 0), "cuMemAlloc_v2");
}

TEST(LookupByAnswer, tells_the_default_streams_apart_by_flags) {
  EXPECT_EQ(row_of_ask(kCurrent, "cuLaunchKernel", 13000, CU_GET_PROC_ADDRESS_DEFAULT), "cuLaunchKernel");
  EXPECT_EQ(row_of_ask(kCurrent, "cuLaunchKernel", 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM), "cuLaunchKernel");
  EXPECT_EQ(row_of_ask(kCurrent, "cuLaunchKernel", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
            "cuLaunchKernel_ptsz");
  EXPECT_EQ(row_of_ask(kCurrent, "cuStreamBeginCapture", 10000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
            "cuStreamBeginCapture_ptsz");
}

TEST(LookupByAnswer, follows_a_per_thread_ask_that_falls_back_to_the_legacy_function) {
  constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  EXPECT_EQ(row_of_ask(kCurrent, "cuMemAlloc", 13000, kPerThread), "cuMemAlloc_v2");
  EXPECT_EQ(row_of_ask(kCurrent, "cuLaunchKernel", 4000, kPerThread), "cuLaunchKernel");
  EXPECT_EQ(row_of_ask(kCurrent, "cuGetProcAddress", 12000, kPerThread), "cuGetProcAddress_v2");
}

TEST(LookupByAnswer, takes_a_per_thread_resolver_for_what_it_is) {
  Driver driver = kCurrent;
  driver.exports.push_back({"cuGetProcAddress", 12000, true, 0});
  EXPECT_EQ(row_of_ask(driver, "cuGetProcAddress", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
            "cuGetProcAddress_v2_ptsz");
  EXPECT_EQ(row_of_ask(driver, "cuGetProcAddress", 12000, 0), "cuGetProcAddress_v2");
}

// Some drivers answer a version they do not know yet with the newest ABI they have.
TEST(LookupByAnswer, takes_the_older_abi_where_the_driver_has_no_newer_one) {
  const Driver older = {13000, {{"cuCtxSynchronize", 2000, false, 0}}};
  EXPECT_EQ(row_of_ask(older, "cuCtxSynchronize", 13000, 0), "cuCtxSynchronize");
}

TEST(LookupByAnswer, leaves_an_abi_newer_than_the_table_to_the_driver) {
  Driver newer = kCurrent;
  newer.version = 14000;
  newer.exports.push_back({"cuLaunchKernel", 14000, false, 0});
  EXPECT_EQ(row_of_ask(newer, "cuLaunchKernel", 14000, 0), "none");
  EXPECT_EQ(row_of_ask(newer, "cuLaunchKernel", 13000, 0), "cuLaunchKernel");
}

TEST(LookupByAnswer, has_no_row_for_what_the_driver_does_not_have) {
  EXPECT_EQ(row_of_ask(kCurrent, "cuLaunchKernelEx", 13000, 0), "none");
  EXPECT_EQ(row_of_ask(kCurrent, "cuNothing", 13000, 0), "none");
  EXPECT_EQ(row_of_ask(kCurrent, "", 13000, 0), "none");
  EXPECT_EQ(row_of_ask(kCurrent, "cuMemAlloc", 14000, 0), "none");
  EXPECT_EQ(find_answer(nullptr, 13000, &kCurrent, ask), nullptr);
}

TEST(LookupByAnswer, asks_the_driver_nothing_about_names_that_are_not_hooked) {
  asks = 0;
  EXPECT_EQ(find_answer("cuDeviceGetCount", 13000, &kCurrent, ask), nullptr);
  EXPECT_EQ(find_answer("cuMemAlloc_v2", 13000, &kCurrent, ask), nullptr);
  EXPECT_EQ(asks, 0);
}

}  // namespace
}  // namespace hmshim::interpose
