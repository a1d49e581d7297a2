// Each family of calls: a program sees what it would see without the library, and the report says what went past it.
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

constexpr const char* kLarge = "512MiB";  // holds all that the program ever has
constexpr const char* kSmall = "32MiB";   // half of what most families use

GuestResult run_family(const std::string& family, const Environment& environment, const Environment& more) {
  Environment all = environment;
  all.emplace("SIMGPU_KERNELS", build_dir() / "guests" / "libsum_kernels.so");
  all.insert(more.begin(), more.end());
  return run_guest({.program = guest_program("families"), .args = {family}, .environment = all});
}

GuestResult bare(const std::string& family) { return run_family(family, on_simgpu(), {{"SIMGPU_CAPACITY", kLarge}}); }

// The output is that of a run without the library on a device that holds everything.
void expect_same(const std::string& family, const Environment& extra) {
  const GuestResult without = bare(family);
  ASSERT_TRUE(without.succeeded()) << without.describe();
  const GuestResult with = run_family(family, on_simgpu_with_shim(), extra);
  EXPECT_TRUE(with.succeeded()) << with.describe();
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(with.err, without.err);
}

// The last record of a run's report.
json exit_of(const TempDir& folder) { return read_json_lines(folder.file("r.jsonl")).back(); }

json bypass(const json& exit, const std::string& reason) {
  for (const json& each : exit.at("bypasses")) {
    if (each.at("reason") == reason) return each;
  }
  return {{"reason", reason}, {"count", 0}, {"bytes", 0}};
}

// Figures of the simulated GPU at the end of a run.
json figures_of(const TempDir& folder) { return read_json_lines(folder.file("log.jsonl")).back(); }

TEST(PointerQueries, tell_of_device_memory_with_the_programs_own_base_and_size) {
  expect_same("pointers", {{"SIMGPU_CAPACITY", kLarge}});
}

TEST(PointerQueries, agree_when_nothing_is_managed_any_more) {
  expect_same("pointers", {{"SIMGPU_CAPACITY", kLarge}, {"HMSHIM_POLICY", "off"}});
}

TEST(PitchedAllocation, has_the_drivers_answer_for_every_size_and_pitch) {
  const TempDir folder;
  expect_same("pitch", {{"SIMGPU_CAPACITY", kLarge}, {"HMSHIM_REPORT", folder.file("r.jsonl")}});
  // Four of the table and the box are worth managing.
  EXPECT_EQ(exit_of(folder).at("allocations").at("managed").at("count"), 5);
}

TEST(ProgramsOwnManagedMemory, stays_what_it_is_and_is_counted) {
  const TempDir folder;
  expect_same("managed", {{"SIMGPU_CAPACITY", kLarge}, {"HMSHIM_REPORT", folder.file("r.jsonl")}});
  const json counted = bypass(exit_of(folder), "program_managed");
  EXPECT_EQ(counted.at("count"), 1);
  EXPECT_EQ(counted.at("bytes"), 16 << 20);
}

TEST(ProgramsOwnManagedMemory, counts_against_the_managed_limit) {
  const GuestResult result =
      run_family("managed", on_simgpu_with_shim(), {{"SIMGPU_CAPACITY", kLarge}, {"HMSHIM_MANAGED_LIMIT", "15MiB"}});
  EXPECT_THAT(result.out, HasSubstr("CU_MEM_ATTACH_GLOBAL) -> " + std::to_string(CUDA_ERROR_OUT_OF_MEMORY)));
}

TEST(ProgramsOwnManagedMemory, has_its_limit_back_after_the_free) {
  EXPECT_TRUE(
      run_family("managed", on_simgpu_with_shim(), {{"SIMGPU_CAPACITY", kLarge}, {"HMSHIM_MANAGED_LIMIT", "24MiB"}})
          .succeeded());
}

// 16 MiB of its own, 8 MiB for all: the prefetch brings in half of it, and nothing is demoted for it.
TEST(ProgramsOwnManagedMemory, is_prefetched_within_the_budget_and_never_demoted) {
  const TempDir folder;
  expect_same("managed", {{"SIMGPU_CAPACITY", kSmall},
                          {"HMSHIM_DEVICE_BUDGET", "8MiB"},
                          {"HMSHIM_REPORT", folder.file("r.jsonl")},
                          {"SIMGPU_LOG", folder.file("log.jsonl")}});
  EXPECT_EQ(bypass(exit_of(folder), "program_prefetch").at("bytes"), 8 << 20);
  EXPECT_EQ(figures_of(folder).at("d2h_user_bytes"), 0);
}

TEST(Escapes, are_passed_on_and_named_with_their_bytes) {
  const TempDir folder;
  expect_same("escapes", {{"SIMGPU_CAPACITY", kLarge}, {"HMSHIM_REPORT", folder.file("r.jsonl")}});
  const json exit = exit_of(folder);
  EXPECT_EQ(bypass(exit, "virtual_memory").at("bytes"), 4 << 20);
  const json arrays = bypass(exit, "array");
  EXPECT_EQ(arrays.at("count"), 3);
  constexpr int kFlat = 1024 * 512 * 8;
  constexpr int kVolume = 64 * 64 * 64 * 2;
  EXPECT_EQ(arrays.at("bytes"), kFlat + kVolume + kVolume + kVolume / 8 + kVolume / 64);
  const json pinned = bypass(exit, "pinned_host");
  EXPECT_EQ(pinned.at("count"), 2);
  EXPECT_EQ(pinned.at("bytes"), 300000);
}

// A copy engine that faults brings pages in on demand; made resident before, they come by prefetch.
TEST(Copies, of_every_form_find_both_sides_resident) {
  const TempDir folder;
  expect_same("copies", {{"SIMGPU_CAPACITY", kSmall}, {"SIMGPU_LOG", folder.file("log.jsonl")}});
  EXPECT_EQ(figures_of(folder).at("h2d_demand_bytes"), 0);
  EXPECT_GT(figures_of(folder).at("h2d_user_bytes"), 0);
}

TEST(Launches, are_seen_whichever_way_they_are_made) {
  const TempDir folder;
  expect_same("launches", {{"SIMGPU_CAPACITY", kLarge}, {"HMSHIM_REPORT", folder.file("r.jsonl")}});
  const json exit = exit_of(folder);
  EXPECT_EQ(exit.at("devices").at(0).at("launches"), 18);
  EXPECT_EQ(bypass(exit, "unknown_parameters").at("count"), 0);
}

TEST(Launches, with_arguments_of_every_shape_compute_the_same) {
  for (const char* program : {"launch_args", "streams"}) {
    const auto run = [&](const Environment& environment) {
      Environment all = environment;
      all.emplace("SIMGPU_KERNELS", build_dir() / "guests" / "libsum_kernels.so");
      all.emplace("SIMGPU_CAPACITY", kSmall);
      return run_guest({.program = guest_program(program), .args = {}, .environment = all});
    };
    const GuestResult without = run(on_simgpu());
    const GuestResult with = run(on_simgpu_with_shim({{"HMSHIM_DEVICE_BUDGET", "14MiB"}}));
    ASSERT_TRUE(without.succeeded()) << without.describe();
    EXPECT_EQ(with.out, without.out) << with.describe();
  }
}

TEST(Graphs, of_all_kinds_of_nodes_compute_the_same_when_the_device_is_too_small) {
  expect_same("graphs", {{"SIMGPU_CAPACITY", kSmall}});
}

TEST(Graphs, touch_what_their_nodes_name) {
  const TempDir folder;
  expect_same("graphs", {{"SIMGPU_CAPACITY", kLarge}, {"HMSHIM_REPORT", folder.file("r.jsonl")}});
  const json exit = exit_of(folder);
  EXPECT_EQ(bypass(exit, "graph_launch").at("count"), 0);
  // Four replays, three launches.
  EXPECT_EQ(exit.at("devices").at(0).at("launches"), 7);
}

// The second and third replay find 12 arrays of which some were pushed out: the engine must have known.
TEST(Graphs, bring_the_policy_to_make_room_for_all_of_their_operands) {
  const TempDir folder;
  expect_same("graphs", {{"SIMGPU_CAPACITY", "64MiB"},
                         {"HMSHIM_REPORT", folder.file("r.jsonl")},
                         {"SIMGPU_LOG", folder.file("log.jsonl")}});
  EXPECT_GT(exit_of(folder).at("devices").at(0).at("h2d_demand_bytes"), 0);
  EXPECT_EQ(figures_of(folder).at("d2h_eviction_bytes"), 0) << "the driver had to make room itself";
}

TEST(Capture, holds_nothing_of_ours_whatever_runs_beside_it) {
  expect_same("capture_beside", {{"SIMGPU_CAPACITY", kSmall}});
}

// Each launch names two of sixteen arrays, eight of which fit: had the policy not known, the driver would have made
// room.
TEST(TensorMaps, lead_to_the_tensors_behind_them) {
  const TempDir folder;
  expect_same("tensor_maps", {{"SIMGPU_CAPACITY", kSmall}, {"SIMGPU_LOG", folder.file("log.jsonl")}});
  EXPECT_EQ(figures_of(folder).at("d2h_eviction_bytes"), 0);
}

}  // namespace
}  // namespace hmshim::support
