// What no device holds whole stays on the host: gathers from it cost their own bytes, and what fits keeps the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

using nlohmann::json;

GuestResult gather(Environment environment, const std::string& capacity, const TempDir& folder) {
  environment.insert({{"SIMGPU_KERNELS", build_dir() / "guests" / "libsum_kernels.so"},
                      {"SIMGPU_CAPACITY", capacity},
                      {"SIMGPU_LOG", folder.file("log.jsonl")}});
  return run_guest({.program = guest_program("gather"), .args = {"128", "8"}, .environment = environment});
}

json figures_of(const TempDir& folder) { return read_json_lines(folder.file("log.jsonl")).back(); }

TEST(RemoteAccess, a_table_larger_than_the_device_is_gathered_without_migrating_it) {
  const TempDir alone, remote;
  const GuestResult expected = gather(on_simgpu(), "512MiB", alone);
  ASSERT_TRUE(expected.succeeded()) << expected.describe();
  for (const char* policy : {"on_demand", "learned"}) {
    const TempDir folder;
    const GuestResult result = gather(
        on_simgpu_with_shim({{"HMSHIM_POLICY", policy}, {"HMSHIM_REPORT", folder.file("r.jsonl")}}), "32MiB", folder);
    ASSERT_TRUE(result.succeeded()) << result.describe();
    EXPECT_EQ(result.out, expected.out) << policy;
    EXPECT_EQ(result.err, "") << policy;

    const json figures = figures_of(folder);
    EXPECT_EQ(figures.at("d2h_eviction_bytes"), 0) << policy;
    EXPECT_GT(figures.at("h2d_remote_bytes"), 0) << policy;
    const json bypasses = read_json_lines(folder.file("r.jsonl")).back().at("bypasses");
    ASSERT_EQ(bypasses.size(), 1U) << bypasses;
    EXPECT_EQ(bypasses.at(0), (json{{"reason", "remote_access"}, {"count", 1}, {"bytes", 128 << 20}}));
  }
}

TEST(RemoteAccess, is_faster_than_migrating_on_faults_and_can_be_switched_off) {
  const TempDir on, off;
  const GuestResult with = gather(on_simgpu_with_shim(), "32MiB", on);
  const GuestResult without = gather(on_simgpu_with_shim({{"HMSHIM_REMOTE_ACCESS", "off"}}), "32MiB", off);
  ASSERT_TRUE(without.succeeded()) << without.describe();
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(figures_of(off).at("h2d_remote_bytes"), 0);
  EXPECT_LT(2 * figures_of(on).at("now_ns").get<std::uint64_t>(), figures_of(off).at("now_ns").get<std::uint64_t>());
}

TEST(RemoteAccess, a_table_that_fits_migrates_as_ever) {
  const TempDir folder;
  const GuestResult result = gather(on_simgpu_with_shim(), "256MiB", folder);
  ASSERT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(figures_of(folder).at("h2d_remote_bytes"), 0);
}

TEST(RemoteAccess, host_memory_must_hold_it_whole) {
  const TempDir folder;
  const GuestResult result = gather(on_simgpu_with_shim({{"SIMGPU_HOST_RAM", "120MiB"}}), "32MiB", folder);
  EXPECT_EQ(result.exit_status, 1) << result.describe();
  EXPECT_THAT(result.err, ::testing::HasSubstr("out of memory"));
}

}  // namespace
}  // namespace hmshim::support
