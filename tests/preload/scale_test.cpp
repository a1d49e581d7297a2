// More threads, devices and allocations than usual, and what is promised when they meet a limit together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

using ::testing::HasSubstr;

GuestResult many(const std::vector<std::string>& args, const Environment& environment) {
  return run_guest({.program = guest_program("many"), .args = args, .environment = environment});
}

// Prints what it prints without the library on a device that holds everything.
void expect_same(const std::vector<std::string>& args, const Environment& large, const Environment& small) {
  const GuestResult without = many(args, on_simgpu(large));
  ASSERT_TRUE(without.succeeded()) << without.describe();
  const GuestResult with = many(args, on_simgpu_with_shim(small));
  EXPECT_TRUE(with.succeeded()) << with.describe();
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(with.err, without.err);
}

TEST(Scale, of_128_threads_on_a_device_that_is_too_small) {
  expect_same({"threads", "128"}, {{"SIMGPU_CAPACITY", "1GiB"}}, {{"SIMGPU_CAPACITY", "256MiB"}});
}

TEST(Scale, of_128_threads_with_the_learned_policy) {
  expect_same({"threads", "128"}, {{"SIMGPU_CAPACITY", "1GiB"}},
              {{"SIMGPU_CAPACITY", "256MiB"}, {"HMSHIM_POLICY", "learned"}});
}

TEST(Scale, of_16_devices_that_are_used_at_once) {
  const TempDir folder;
  const Environment devices = {{"SIMGPU_DEVICES", "16"}, {"SIMGPU_CAPACITY", "64MiB"}};
  Environment reported = devices;
  reported.emplace("HMSHIM_REPORT", folder.file("r.jsonl"));
  expect_same({"devices", "16"}, devices, reported);
  EXPECT_EQ(read_json_lines(folder.file("r.jsonl")).back().at("devices").size(), 16U);
}

// A million in the long form (make campaign).
TEST(Scale, of_allocations_held_at_once) {
  const bool is_long = std::getenv("HMSHIM_TEST_EVERY_FAULT") != nullptr;
  const Environment large = {{"SIMGPU_CAPACITY", "8GiB"}};
  expect_same({"held", is_long ? "1000000" : "50000"}, large, large);
}

TEST(Scale, threads_that_meet_a_limit_together_do_not_pass_it) {
  for (const char* threads : {"1", "8", "32"}) {
    const GuestResult result = many(
        {"limit", threads}, on_simgpu_with_shim({{"SIMGPU_CAPACITY", "64MiB"}, {"HMSHIM_MANAGED_LIMIT", "24MiB"}}));
    EXPECT_TRUE(result.succeeded()) << result.describe();
    EXPECT_THAT(result.out, HasSubstr("granted 6 ")) << threads << " threads";
  }
}

// Frameworks take most of the total at once, or try for more than there is.
TEST(MemoryInformation, is_never_above_the_total_and_falls_while_memory_is_taken) {
  for (const char* percent : {"7", "75", "400"}) {
    expect_same({"shares", percent}, {{"SIMGPU_CAPACITY", "256MiB"}}, {{"SIMGPU_CAPACITY", "256MiB"}});
  }
}

TEST(MemoryInformation, holds_when_the_device_budget_is_exceeded) {
  const GuestResult result =
      many({"shares", "7"}, on_simgpu_with_shim({{"SIMGPU_CAPACITY", "256MiB"}, {"HMSHIM_DEVICE_BUDGET", "32MiB"}}));
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(result.out, "nothing to write to -> 0\nfree is not above the total: 1\n14 taken, then -> 2\n");
}

}  // namespace
}  // namespace hmshim::support
