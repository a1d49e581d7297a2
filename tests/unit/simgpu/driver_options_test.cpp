#include "tests/simgpu/driver/options.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/unit/simgpu/driver_gpu.hpp"

namespace {

using namespace driver_test;
using namespace hmshim::simgpu;

std::string complaint(auto&& body) {
  try {
    body();
  } catch (const OptionError& error) {
    return error.what();
  }
  return "no complaint";
}

TEST(DriverOptions, bytes_take_binary_units_and_nothing_else) {
  EXPECT_EQ(parse_bytes("X", "4096"), 4096U);
  EXPECT_EQ(parse_bytes("X", "64MiB"), 64U << 20);
  EXPECT_EQ(parse_bytes("X", "8GiB"), 8ULL << 30);
  for (const char* junk : {"", "0", "MiB", "-1", "8G", "8 GiB", "8GiBs", "99999999999999999999", "99999999999TiB"}) {
    EXPECT_EQ(complaint([&] { static_cast<void>(parse_bytes("SIMGPU_CAPACITY", junk)); }),
              "SIMGPU_CAPACITY=" + std::string(junk) + ": expected bytes, such as 64MiB, 8GiB or 4096");
  }
}

TEST(DriverOptions, failures_name_an_export_an_ordinal_and_an_error) {
  const auto failures = parse_failures("cuMemAlloc_v2:3:CUDA_ERROR_OUT_OF_MEMORY,*:17:1");
  ASSERT_EQ(failures.size(), 2U);
  EXPECT_EQ(failures[0].symbol, "cuMemAlloc_v2");
  EXPECT_EQ(failures[0].ordinal, 3U);
  EXPECT_EQ(failures[0].error, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(failures[1].symbol, "*");
  EXPECT_EQ(failures[1].error, CUDA_ERROR_INVALID_VALUE);
  for (const char* junk :
       {"", "cuMemAlloc_v2", "cuMemAlloc_v2:1", "cuMemAllok:1:2", "cuMemAlloc_v2:0:2", "*:1:0", "*:1:NO"}) {
    EXPECT_TRUE(complaint([&] { static_cast<void>(parse_failures(junk)); }).starts_with("SIMGPU_FAIL=")) << junk;
  }
}

TEST(DriverOptions, junk_in_the_environment_fails_cuInit_with_a_line_on_stderr) {
  set_environment("SIMGPU_DEVICES", "many");
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuInit(0), CUDA_ERROR_SYSTEM_NOT_READY);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "simgpu: SIMGPU_DEVICES=many: expected a number from 0 to 16\n");
}

TEST(DriverOptions, an_unknown_profile_is_answered_with_those_there_are) {
  set_environment("SIMGPU_PROFILE", "h2000");
  testing::internal::CaptureStderr();
  EXPECT_EQ(cuInit(0), CUDA_ERROR_SYSTEM_NOT_READY);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("SIMGPU_PROFILE=h2000"), std::string::npos) << said;
  EXPECT_NE(said.find("v100-32g-pcie3"), std::string::npos) << said;
}

TEST(DriverOptions, without_devices_there_is_no_device) {
  set_environment("SIMGPU_DEVICES", "0");
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

TEST(DriverOptions, profile_capacity_and_devices_shape_the_machine) {
  set_environment("SIMGPU_PROFILE", "v100-32g-pcie3");
  set_environment("SIMGPU_DEVICES", "2");
  set_environment("SIMGPU_CAPACITY", "16MiB");
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  int count = 0;
  int major = 0;
  std::size_t bytes = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 1), CUDA_SUCCESS);
  EXPECT_EQ(major, 7);
  EXPECT_EQ(cuDeviceTotalMem_v2(&bytes, 1), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 16U << 20);
  EXPECT_EQ(cuDeviceTotalMem_v2(&bytes, 2), CUDA_ERROR_INVALID_DEVICE);
}

TEST(DriverOptions, a_failure_hits_its_call_and_no_other) {
  set_environment("SIMGPU_FAIL", "cuMemAlloc_v2:2:CUDA_ERROR_OUT_OF_MEMORY");
  const Gpu gpu;
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 1024), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc_v2(&address, 1024), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&address, 1024), CUDA_SUCCESS);
  EXPECT_EQ(Gpu::stats().live_allocations, 2U);
}

TEST(DriverOptions, a_failure_of_any_call_counts_them_all) {
  set_environment("SIMGPU_FAIL", "*:5:CUDA_ERROR_UNKNOWN");
  const Gpu gpu;  // cuInit, cuDevicePrimaryCtxRetain, cuCtxSetCurrent
  CUdeviceptr address = 0;
  int count = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc_v2(&address, 1024), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(Gpu::stats().live_allocations, 0U);
  EXPECT_EQ(Gpu::stats().calls, 5U);
}

// A process of its own: the last line is written when it ends.
TEST(DriverOptions, the_log_has_a_line_per_call_and_ends_with_the_balances) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("simgpu-log-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  set_environment("SIMGPU_LOG", (folder / "%p.log").string());
  EXPECT_EXIT(
      {
        const Gpu gpu;
        static_cast<void>(Gpu::allocate(1024));
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  std::vector<std::filesystem::path> logs;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) logs.push_back(entry.path());
  ASSERT_EQ(logs.size(), 1U);
  EXPECT_NE(logs[0].filename(), "%p.log");
  std::ifstream file(logs[0]);
  const std::string log(std::istreambuf_iterator<char>(file), {});
  EXPECT_NE(log.find(R"({"t":"call","call":"cuMemAlloc_v2","result":0,)"), std::string::npos) << log;
  EXPECT_NE(log.find(R"({"t":"end","live_allocations":1,)"), std::string::npos) << log;
  std::filesystem::remove_all(folder);
}

TEST(DriverOptions, attributes_are_numbers_with_values) {
  EXPECT_EQ(parse_attributes("18=1,89=0"), (std::map<int, int>{{18, 1}, {89, 0}}));
  for (const char* junk : {"18", "18=", "=1", "18=1,", "x=1", "99999=1", "18=1=2"}) {
    EXPECT_NE(complaint([&] { static_cast<void>(parse_attributes(junk)); }).find("number=value"), std::string::npos)
        << junk;
  }
}

}  // namespace
