// What a user of the library sees of it: its report, its summary, its one line on a bad option, and else nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kSmallDevice = "32MiB";   // half of what the program needs
constexpr const char* kLargeDevice = "256MiB";  // more than it needs

// The training program: 64 MiB in tensors of 4 MiB.
const std::vector<std::string> kTraining{"--layers", "4", "--width", "1024", "--iterations", "4"};

Environment on_device(const char* capacity, const Environment& more = {}) {
  Environment environment{{"SIMGPU_CAPACITY", capacity},
                          {"SIMGPU_KERNELS", build_dir() / "guests" / "libmlp_kernels.so"}};
  environment.insert(more.begin(), more.end());
  return environment;
}

GuestResult train(const Environment& environment) {
  return run_guest({.program = guest_program("mlp"), .args = kTraining, .environment = environment});
}

// A shell command line with the training program as $0 and its arguments as $@.
GuestResult shell(const std::string& command, const Environment& environment) {
  std::vector<std::string> args{"-c", command, guest_program("mlp")};
  args.insert(args.end(), kTraining.begin(), kTraining.end());
  return run_guest({.program = "/bin/sh", .args = args, .environment = environment});
}

std::vector<json> of_kind(const std::vector<json>& records, const std::string& kind) {
  std::vector<json> found;
  std::ranges::copy_if(records, std::back_inserter(found),
                       [&](const json& record) { return record.at("kind") == kind; });
  return found;
}

std::vector<std::string> files_in(const TempDir& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

TEST(PreloadReport, tells_start_iterations_and_end_of_a_process) {
  const TempDir folder;
  const auto result = train(on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_REPORT", folder.file("r.jsonl")}})));
  ASSERT_TRUE(result.succeeded()) << result.describe();
  const std::vector<json> records = read_json_lines(folder.file("r.jsonl"));
  ASSERT_GE(records.size(), 3U);

  const json& start = records.front();
  EXPECT_EQ(start.at("kind"), "start");
  EXPECT_EQ(start.at("device_total_bytes"), 32 << 20);
  EXPECT_EQ(start.at("policy"), "on_demand");
  EXPECT_EQ(start.at("can_migrate"), true);

  const std::vector<json> iterations = of_kind(records, "iteration");
  ASSERT_FALSE(iterations.empty());
  for (std::size_t ordinal = 0; ordinal < iterations.size(); ++ordinal) {
    const json& iteration = iterations[ordinal];
    EXPECT_EQ(iteration.at("iteration"), ordinal);
    EXPECT_GT(iteration.at("launches"), 0);
    EXPECT_GE(iteration.at("confidence"), 0.0);
    EXPECT_LE(iteration.at("confidence"), 1.0);
    EXPECT_LE(iteration.at("resident_bytes"), iteration.at("footprint_bytes"));
    EXPECT_EQ(iteration.at("budget_bytes"), start.at("budget_bytes"));
  }

  const json& exit = records.back();
  EXPECT_EQ(exit.at("kind"), "exit");
  EXPECT_EQ(exit.at("gate"), "active");
  EXPECT_EQ(exit.at("records_dropped"), 0);
  std::uint64_t migrated = 0;
  for (const json& kind : exit.at("lifetimes")) {
    EXPECT_GT(kind.at("extents"), 0) << kind;
    migrated += kind.at("migrated_bytes").get<std::uint64_t>();
  }
  EXPECT_GT(migrated, 0);
  EXPECT_GT(exit.at("allocations").at("managed").at("count"), 0);
  EXPECT_GT(exit.at("allocations").at("managed").at("peak_bytes"), 32 << 20);
  for (const char* hook : {"cuMemAlloc_v2", "cuMemFree_v2", "cuLaunchKernel"}) {
    EXPECT_GT(exit.at("hooks").value(hook, 0), 0) << hook;
  }
  const json& totals = exit.at("devices").at(0);
  EXPECT_EQ(totals.at("device"), 0);
  EXPECT_EQ(totals.at("period_launches"), iterations.back().at("period_launches"));
  std::uint64_t largest = 0;
  for (const json& each : iterations) largest = std::max(largest, each.at("working_set_bytes").get<std::uint64_t>());
  EXPECT_EQ(totals.at("working_set_bytes"), largest);
  std::uint64_t demoted = 0;
  for (const json& iteration : iterations) demoted += iteration.at("d2h_demote_bytes").get<std::uint64_t>();
  EXPECT_GT(totals.at("d2h_demote_bytes"), 0);
  EXPECT_GE(totals.at("d2h_demote_bytes"), demoted) << "what happened between iterations is in the totals only";

  std::set<int> pids;
  for (const json& record : records) pids.insert(record.at("pid").get<int>());
  EXPECT_EQ(pids.size(), 1U);
}

TEST(PreloadReport, is_not_there_unless_asked_for) {
  const TempDir folder;
  const auto plain = train(on_simgpu(on_device(kLargeDevice)));
  const auto shimmed = train(on_simgpu_with_shim(on_device(kLargeDevice, {{"TMPDIR", folder.path()}})));
  ASSERT_TRUE(plain.succeeded()) << plain.describe();
  ASSERT_TRUE(shimmed.succeeded()) << shimmed.describe();
  EXPECT_EQ(shimmed.out, plain.out);
  EXPECT_EQ(shimmed.err, plain.err);
  EXPECT_TRUE(files_in(folder).empty());
}

TEST(PreloadReport, a_process_without_cuda_leaves_no_trace) {
  const TempDir folder;
  const auto result = run_guest(
      {.program = "/bin/true",
       .args = {},
       .environment = on_simgpu_with_shim(
           {{"HMSHIM_REPORT", folder.file("r.jsonl")}, {"HMSHIM_SUMMARY", "1"}, {"HMSHIM_DEVICE_BUDGET", "junk"}})});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(result.out + result.err, "");
  EXPECT_TRUE(files_in(folder).empty());
}

TEST(PreloadReport, process_and_rank_name_the_file_of_each_process) {
  const TempDir folder;
  const auto result =
      shell("RANK=3 \"$0\" \"$@\" && \"$0\" \"$@\"",
            on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_REPORT", folder.file("%r-%p.jsonl")}})));
  ASSERT_TRUE(result.succeeded()) << result.describe();
  const std::vector<std::string> names = files_in(folder);
  ASSERT_EQ(names.size(), 2U);
  EXPECT_THAT(names[0], StartsWith("0-"));
  EXPECT_THAT(names[1], StartsWith("3-"));
  for (const std::string& name : names) {
    const std::vector<json> records = read_json_lines(folder.file(name));
    EXPECT_EQ(of_kind(records, "exit").size(), 1U);
    EXPECT_EQ(name.substr(2), records.front().at("pid").dump() + ".jsonl");
  }
}

TEST(PreloadReport, processes_that_share_a_file_append_to_it) {
  const TempDir folder;
  const auto result = shell("\"$0\" \"$@\" & \"$0\" \"$@\"; wait",
                            on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_REPORT", folder.file("r.jsonl")}})));
  ASSERT_TRUE(result.succeeded()) << result.describe();
  const std::vector<json> records = read_json_lines(folder.file("r.jsonl"));
  EXPECT_EQ(of_kind(records, "start").size(), 2U);
  EXPECT_EQ(of_kind(records, "exit").size(), 2U);
}

TEST(PreloadReport, the_summary_is_a_table_on_stderr) {
  const auto quiet = train(on_simgpu_with_shim(on_device(kSmallDevice)));
  const auto result = train(on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_SUMMARY", "1"}})));
  ASSERT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(result.out, quiet.out);
  EXPECT_THAT(result.err, AllOf(StartsWith("hmshim["), HasSubstr("policy on_demand, active\n"),
                                HasSubstr("working set"), HasSubstr("0 in all"), HasSubstr("allocations: ")));
}

TEST(PreloadReport, neither_a_full_disk_nor_a_closed_stderr_hurts_the_program) {
  const auto expected = train(on_simgpu_with_shim(on_device(kSmallDevice)));
  const auto full = train(on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_REPORT", "/dev/full"}})));
  EXPECT_TRUE(full.succeeded()) << full.describe();
  EXPECT_EQ(full.out, expected.out);
  EXPECT_THAT(full.err, AllOf(StartsWith("hmshim["), HasSubstr("/dev/full ends early: No space left on device")));
  EXPECT_EQ(std::ranges::count(full.err, '\n'), 1);

  const auto closed =
      shell("exec \"$0\" \"$@\" 2>&-",
            on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_SUMMARY", "1"}, {"HMSHIM_LOG", "debug"}})));
  EXPECT_TRUE(closed.succeeded()) << closed.describe();
  EXPECT_EQ(closed.out, expected.out);
}

TEST(PreloadReport, the_log_says_what_is_managed_and_when_a_budget_is_more_than_there_is) {
  const auto told = train(on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_LOG", "info"}})));
  EXPECT_THAT(told.err, HasSubstr("its memory is managed. Policy on_demand, budget "));
  const auto warned = train(on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_DEVICE_BUDGET", "1T"}})));
  EXPECT_TRUE(warned.succeeded()) << warned.describe();
  EXPECT_THAT(warned.err, HasSubstr("warning: HMSHIM_DEVICE_BUDGET is more than device 0 has: the budget is its "));
  EXPECT_EQ(std::ranges::count(warned.err, '\n'), 1);
}

TEST(PreloadReport, a_file_that_cannot_be_written_is_named_once) {
  const auto result = train(on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_REPORT", "/nonexistent/r.jsonl"}})));
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_THAT(result.err, AllOf(StartsWith("hmshim["), HasSubstr("/nonexistent/r.jsonl: No such file or directory")));
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1);
}

TEST(PreloadOptions, junk_gives_one_line_and_the_policy_stays_off) {
  const auto plain = train(on_simgpu(on_device(kSmallDevice)));
  const auto result = train(on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_DEVICE_BUDGET", "08G"}})));
  EXPECT_EQ(result.exit_status, plain.exit_status) << "a limit that was misread must not be acted upon";
  EXPECT_EQ(result.out, plain.out);
  ASSERT_THAT(result.err, Not(plain.err));
  const std::string line = result.err.substr(0, result.err.find('\n') + 1);
  EXPECT_THAT(line, AllOf(HasSubstr("HMSHIM_DEVICE_BUDGET=08G"), HasSubstr("8GiB"), HasSubstr("policy stays off")));
  EXPECT_EQ(result.err, line + plain.err);
}

TEST(PreloadOptions, an_unknown_name_is_answered_with_the_nearest_and_changes_nothing) {
  const auto expected = train(on_simgpu_with_shim(on_device(kSmallDevice)));
  const auto result = train(on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_DEVICE_BUDGT", "8G"}})));
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(result.out, expected.out);
  EXPECT_THAT(result.err, AllOf(HasSubstr("HMSHIM_DEVICE_BUDGT "), HasSubstr("did you mean HMSHIM_DEVICE_BUDGET?")));
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1);
}

TEST(PreloadOptions, zero_turns_a_switch_off) {
  const auto result =
      train(on_simgpu_with_shim(on_device(kSmallDevice, {{"HMSHIM_SUMMARY", "0"}, {"HMSHIM_DISABLE", "0"}})));
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(result.err, "");
}

TEST(PreloadOptions, disabled_means_as_if_not_there) {
  const TempDir folder;
  const auto plain = train(on_simgpu(on_device(kSmallDevice)));
  const auto result = train(on_simgpu_with_shim(on_device(
      kSmallDevice, {{"HMSHIM_DISABLE", "1"}, {"HMSHIM_REPORT", folder.file("r.jsonl")}, {"HMSHIM_SUMMARY", "1"}})));
  EXPECT_EQ(result.exit_status, plain.exit_status);
  EXPECT_EQ(result.out, plain.out);
  EXPECT_EQ(result.err, plain.err);
  EXPECT_TRUE(files_in(folder).empty());
}

}  // namespace
}  // namespace hmshim::support
