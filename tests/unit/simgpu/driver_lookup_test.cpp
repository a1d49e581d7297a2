#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/simgpu/driver/cuda_api.hpp"
#include "tests/simgpu/driver/lookup.hpp"

// Not declared by cuda.h unless compiled for the per-thread default stream.
SIMGPU_EXPORT CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                           unsigned, CUstream, void**, void**);

namespace {

constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

void* ask(const char* base, int version, cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT,
          CUdriverProcAddressQueryResult expected = CU_GET_PROC_ADDRESS_SUCCESS) {
  void* address = reinterpret_cast<void*>(1);
  CUdriverProcAddressQueryResult status{};
  EXPECT_EQ(cuGetProcAddress_v2(base, &address, version, flags, &status), CUDA_SUCCESS) << base;
  EXPECT_EQ(status, expected) << base << " " << version;
  return address;
}

template <class Function>
void* at(Function* function) {
  return reinterpret_cast<void*>(function);
}

TEST(DriverLookup, answers_each_version_of_a_name_with_its_own_abi) {
  EXPECT_EQ(ask("cuMemAlloc", 2000), at(&cuMemAlloc));
  EXPECT_EQ(ask("cuMemAlloc", 3020), at(&cuMemAlloc_v2));
  EXPECT_EQ(ask("cuMemAlloc", 13000), at(&cuMemAlloc_v2));
  EXPECT_EQ(ask("cuMemPrefetchAsync", 8000), at(&cuMemPrefetchAsync));
  EXPECT_EQ(ask("cuMemPrefetchAsync", 12010), at(&cuMemPrefetchAsync));
  EXPECT_EQ(ask("cuMemPrefetchAsync", 12020), at(&cuMemPrefetchAsync_v2));
  EXPECT_EQ(ask("cuGetProcAddress", 11030), at(&cuGetProcAddress));
  EXPECT_EQ(ask("cuGetProcAddress", 12000), at(&cuGetProcAddress_v2));
}

TEST(DriverLookup, gives_the_per_thread_variant_only_when_asked_and_where_there_is_one) {
  EXPECT_EQ(ask("cuLaunchKernel", 7000), at(&cuLaunchKernel));
  EXPECT_EQ(ask("cuLaunchKernel", 7000, CU_GET_PROC_ADDRESS_LEGACY_STREAM), at(&cuLaunchKernel));
  EXPECT_EQ(ask("cuLaunchKernel", 7000, kPerThread), at(&cuLaunchKernel_ptsz));
  EXPECT_EQ(ask("cuMemAlloc", 13000, kPerThread), at(&cuMemAlloc_v2));
}

TEST(DriverLookup, tells_unknown_names_from_versions_that_are_too_old) {
  EXPECT_EQ(ask("cuNoSuchThing", 13000, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND), nullptr);
  EXPECT_EQ(ask("cuMemAlloc_v2", 13000, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND), nullptr);
  EXPECT_EQ(ask("cuMemAllocAsync", 11010, 0, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT), nullptr);
}

TEST(DriverLookup, takes_a_null_status_and_refuses_what_makes_no_sense) {
  void* address = nullptr;
  EXPECT_EQ(cuGetProcAddress_v2("cuMemAlloc", &address, 13000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(address, at(&cuMemAlloc_v2));
  EXPECT_EQ(cuGetProcAddress_v2("", &address, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetProcAddress_v2(nullptr, &address, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetProcAddress_v2("cuMemAlloc", nullptr, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetProcAddress_v2("cuMemAlloc", &address, CUDA_VERSION + 10, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetProcAddress_v2("cuMemAlloc", &address, 13000, 3, nullptr), CUDA_ERROR_INVALID_VALUE);
}

struct Entry {
  const char* base;
  int since;
  const char* flavour;
  const char* symbol;
};

constexpr Entry kEntries[] = {
#define SIMGPU_ENTRY(base, since, flavour, symbol) {#base, since, #flavour, #symbol},
#include "tests/simgpu/driver/entries.def"
#undef SIMGPU_ENTRY
};

TEST(DriverLookup, every_export_is_found_under_its_base_name_and_no_two_rows_are_alike) {
  std::set<std::string> rows;
  for (const Entry& entry : kEntries) {
    const bool is_per_thread = std::string(entry.flavour) == "ptsz";
    EXPECT_NE(hmshim::simgpu::look_up(entry.base, entry.since, is_per_thread).address, nullptr) << entry.symbol;
    EXPECT_TRUE(hmshim::simgpu::is_export(entry.symbol)) << entry.symbol;
    const std::string row = std::string(entry.base) + " " + std::to_string(entry.since) + " " + entry.flavour;
    EXPECT_TRUE(rows.insert(row).second) << entry.symbol;
  }
  EXPECT_EQ(rows.size(), 637U);  // the exports of the toolkit's link stub
}

}  // namespace
