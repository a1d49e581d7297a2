// Machines on which there is nothing to manage, or less than today's driver offers: one verdict, one line, and the
// program runs as without the library.
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

GuestResult work(const Environment& environment) {
  return run_guest({.program = guest_program("process_life"), .args = {"work"}, .environment = environment});
}

std::string attribute(CUdevice_attribute which, int value) {
  return std::to_string(static_cast<int>(which)) + "=" + std::to_string(value);
}

struct Platform {
  const char* name;
  Environment environment;
  const char* why;
};

const std::string kNoConcurrentAccess = attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);

class UnmanagedPlatforms : public ::testing::TestWithParam<Platform> {};

TEST_P(UnmanagedPlatforms, get_one_line_and_nothing_else) {
  const Platform& platform = GetParam();
  const TempDir folder;
  Environment environment = platform.environment;
  environment.emplace("HMSHIM_REPORT", folder.file("r.jsonl"));
  const GuestResult result = work(on_simgpu_with_shim(environment));
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(result.out, "worked\n");
  EXPECT_THAT(result.err, MatchesRegex("hmshim\\[[0-9]+\\]: warning: not managing memory: device 0 .*\n"));
  EXPECT_THAT(result.err, HasSubstr(platform.why));
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1);

  const auto records = read_json_lines(folder.file("r.jsonl"));
  EXPECT_EQ(records.front().at("can_migrate"), false);
  EXPECT_THAT(records.front().at("capabilities").get<std::string>(), HasSubstr(platform.why));
  EXPECT_EQ(records.back().at("gate"), "pass_through");
  EXPECT_EQ(records.back().at("gate_reason"), "unsupported_device");
  EXPECT_EQ(records.back().at("allocations").at("managed").at("count"), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Each, UnmanagedPlatforms,
    ::testing::Values(
        Platform{"no_concurrent_access", {{"SIMGPU_ATTRIBUTES", kNoConcurrentAccess}}, "concurrentManagedAccess is 0"},
        Platform{"mig",
                 {{"SIMGPU_ATTRIBUTES", kNoConcurrentAccess}, {"SIMGPU_NAME", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}},
                 "as on some MIG instances"},
        Platform{"vgpu",
                 {{"SIMGPU_ATTRIBUTES", kNoConcurrentAccess}, {"SIMGPU_NAME", "NVIDIA A100-40C"}},
                 "as on a vGPU without unified memory"},
        Platform{"no_managed_memory",
                 {{"SIMGPU_ATTRIBUTES", attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0)}},
                 "cannot allocate managed memory"},
        Platform{"integrated",
                 {{"SIMGPU_ATTRIBUTES", attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED, 1)}, {"SIMGPU_NAME", "NVIDIA GB10"}},
                 "shares its memory with the host"},
        Platform{"ats",
                 {{"SIMGPU_ATTRIBUTES", attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 1)},
                  {"SIMGPU_PROFILE", "gh200-c2c"}},
                 "uses the host's page tables"}),
    [](const auto& platform) { return std::string(platform.param.name); });

// A driver of CUDA 12.0: no prefetch by location, no parameter layouts, no discard.
TEST(Platforms, an_older_driver_is_used_as_far_as_it_goes) {
  const TempDir folder;
  const GuestResult result = work({{"LD_LIBRARY_PATH", build_dir() / "simgpu-12.0"},
                                   {"SIMGPU_DRIVER_VERSION", "12000"},
                                   {"LD_PRELOAD", build_dir() / "libhmshim.so"},
                                   {"HMSHIM_REPORT", folder.file("r.jsonl")}});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(result.out, "worked\n");
  EXPECT_THAT(result.err, HasSubstr("warning: launch arguments cannot be read (CUDA 12.4 needed)"));
  const auto records = read_json_lines(folder.file("r.jsonl"));
  EXPECT_THAT(records.front().at("capabilities").get<std::string>(),
              ::testing::AllOf(HasSubstr("launch arguments cannot be read"), HasSubstr("no discard")));
  EXPECT_GT(records.back().at("allocations").at("managed").at("count"), 0);
}

TEST(Platforms, a_driver_that_is_too_old_is_left_alone) {
  const GuestResult result = work({{"LD_LIBRARY_PATH", build_dir() / "simgpu-12.0"},
                                   {"SIMGPU_DRIVER_VERSION", "11080"},
                                   {"LD_PRELOAD", build_dir() / "libhmshim.so"}});
  EXPECT_EQ(result.out, "worked\n") << result.describe();
  EXPECT_THAT(result.err, HasSubstr("supports CUDA 11.8, at least 12.0 is needed"));
}

TEST(Platforms, without_a_device_the_program_hears_it_from_the_driver) {
  const auto bare = work(on_simgpu({{"SIMGPU_DEVICES", "0"}}));
  const auto with_shim = work(on_simgpu_with_shim({{"SIMGPU_DEVICES", "0"}}));
  EXPECT_EQ(with_shim.exit_status, bare.exit_status);
  EXPECT_EQ(with_shim.err, bare.err);
}

}  // namespace
}  // namespace hmshim::support
