// Whatever way a process lives and ends: the program does what it does without the library, and each process leaves one
// report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

GuestResult live(const std::string& mode, const Environment& environment) {
  return run_guest({.program = guest_program("process_life"),
                    .args = {mode},
                    .environment = environment,
                    .timeout = std::chrono::seconds(30)});
}

std::vector<json> report_of(const TempDir& folder) { return read_json_lines(folder.file("r.jsonl")); }

std::size_t records_of_kind(const std::vector<json>& records, const std::string& kind) {
  return static_cast<std::size_t>(
      std::ranges::count_if(records, [&](const json& record) { return record.at("kind") == kind; }));
}

// Lives and ends as without the library; in the report each process that began to use a device ends at most once.
// Returns how many of them ended with a record.
std::size_t expect_same_life(const std::string& mode, const Environment& extra = {}) {
  const TempDir folder;
  Environment environment = on_simgpu_with_shim(extra);
  environment.emplace("HMSHIM_REPORT", folder.file("r.jsonl"));
  const GuestResult without = live(mode, on_simgpu());
  const GuestResult with = live(mode, environment);
  EXPECT_FALSE(with.timed_out) << with.describe();
  EXPECT_EQ(with.exit_status, without.exit_status) << with.describe();
  EXPECT_EQ(with.signal, without.signal);
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(with.err, without.err);
  if (!std::filesystem::exists(folder.file("r.jsonl"))) return 0;
  std::map<int, int> ends;
  for (const json& record : report_of(folder)) {
    if (record.at("kind") == "exit") ++ends[record.at("pid").get<int>()];
  }
  for (const auto& [pid, count] : ends) EXPECT_EQ(count, 1) << pid;
  return ends.size();
}

TEST(ProcessLife, a_forked_child_ends_though_others_held_locks_and_leaves_the_report_alone) {
  EXPECT_EQ(expect_same_life("fork"), 1U);
}
// One report file for both: each writes its own records.
TEST(ProcessLife, a_child_forked_before_the_start_is_a_process_like_any) {
  const TempDir folder;
  const GuestResult with = live("fork_before_start", on_simgpu_with_shim({{"HMSHIM_REPORT", folder.file("r.jsonl")}}));
  EXPECT_TRUE(with.succeeded()) << with.describe();
  for (const char* line : {"child worked\n", "parent worked\n", "child ended with 0\n"})
    EXPECT_THAT(with.out, HasSubstr(line));
  EXPECT_EQ(records_of_kind(report_of(folder), "exit"), 2U);
}
TEST(ProcessLife, a_child_that_executes_a_program_is_a_process_of_its_own) {
  EXPECT_EQ(expect_same_life("fork_exec"), 2U);
}
TEST(ProcessLife, a_vforked_child_leaves_its_parent_intact) { EXPECT_EQ(expect_same_life("vfork_exec"), 2U); }
TEST(ProcessLife, a_spawned_child_leaves_its_parent_intact) { EXPECT_EQ(expect_same_life("spawn"), 2U); }
TEST(ProcessLife, a_cloned_child_does_not_write_the_parents_report) { EXPECT_EQ(expect_same_life("clone"), 1U); }
TEST(ProcessLife, a_process_that_executes_itself_reports_once) { EXPECT_EQ(expect_same_life("exec"), 1U); }

TEST(ProcessLife, exit_from_a_thread_keeps_its_status) { EXPECT_EQ(expect_same_life("thread_exit"), 1U); }
TEST(ProcessLife, an_end_without_exit_keeps_its_status) { EXPECT_EQ(expect_same_life("_exit"), 0U); }
TEST(ProcessLife, exit_from_a_signal_handler_does_not_hang) {
  // In the middle of a call nothing can be written; between two calls it is.
  EXPECT_LE(expect_same_life("signal_exit"), 1U);
}
TEST(ProcessLife, handlers_and_destructors_at_exit_may_go_on_calling) { EXPECT_EQ(expect_same_life("at_exit"), 1U); }

TEST(ProcessLife, sixteen_threads_may_start_at_once) { EXPECT_EQ(expect_same_life("cold_start"), 1U); }
TEST(ProcessLife, sixteen_threads_may_start_in_a_constructor) { EXPECT_EQ(expect_same_life("constructor"), 1U); }
TEST(ProcessLife, without_an_environment_there_are_defaults) { EXPECT_EQ(expect_same_life("no_environment"), 0U); }
TEST(ProcessLife, closed_standard_files_are_not_taken_for_the_report) {
  EXPECT_EQ(expect_same_life("closed_files"), 1U);
  EXPECT_EQ(expect_same_life("closed_files", {{"HMSHIM_SUMMARY", "1"}, {"HMSHIM_LOG", "debug"}}), 1U);
}

// ---- what goes past the library

TEST(ProcessLife, a_library_bound_deeply_is_named) {
  const TempDir folder;
  const GuestResult result =
      live("deep_bind", on_simgpu_with_shim({{"HMSHIM_REPORT", folder.file("r.jsonl")},
                                             {"GUEST_LIBRARY", build_dir() / "guests" / "libcomm_library.so"}}));
  EXPECT_EQ(result.out, "worked\n") << result.describe();
  const json exit = report_of(folder).back();
  EXPECT_EQ(exit.at("bound_to_driver"), json::array({"libcomm_library.so"}));
  EXPECT_EQ(exit.at("driver_copies"), 1);
}

TEST(ProcessLife, a_driver_in_another_namespace_is_counted) {
  const TempDir folder;
  const GuestResult result =
      live("namespace", on_simgpu_with_shim({{"HMSHIM_REPORT", folder.file("r.jsonl")}, {"HMSHIM_SUMMARY", "1"}}));
  EXPECT_EQ(result.out, "loaded again\n") << result.describe();
  EXPECT_EQ(report_of(folder).back().at("driver_copies"), 2);
  EXPECT_THAT(result.err, HasSubstr("another copy of the driver"));
}

TEST(ProcessLife, nothing_is_said_to_be_unseen_when_all_is_seen) {
  const TempDir folder;
  ASSERT_TRUE(live("work", on_simgpu_with_shim({{"HMSHIM_REPORT", folder.file("r.jsonl")}})).succeeded());
  const json exit = report_of(folder).back();
  EXPECT_EQ(exit.at("bound_to_driver"), json::array());
  EXPECT_EQ(exit.at("driver_copies"), 1);
}

// ---- other preload libraries, before and after

class OtherPreloads : public ::testing::TestWithParam<const char*> {};

TEST_P(OtherPreloads, before_and_after_ours_change_nothing) {
  const std::string other = GetParam();
  if (!std::filesystem::exists(other)) GTEST_SKIP() << other << " is not installed";
  const std::string ours = (build_dir() / "libhmshim.so").string();
  for (const std::string& preloads : {other + ":" + ours, ours + ":" + other}) {
    const TempDir folder;
    const GuestResult result =
        live("cold_start", on_simgpu({{"LD_PRELOAD", preloads}, {"HMSHIM_REPORT", folder.file("r.jsonl")}}));
    EXPECT_TRUE(result.succeeded()) << preloads << "\n" << result.describe();
    EXPECT_EQ(result.out, "worked\n");
    EXPECT_GT(report_of(folder).back().at("allocations").at("managed").at("count"), 0) << preloads;
  }
}

INSTANTIATE_TEST_SUITE_P(Allocators, OtherPreloads,
                         ::testing::Values("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
                                           "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"));

// The library's own structures live in the program's allocator: whatever that does in malloc, it may do in ours.
TEST(OtherAllocators, that_call_cuda_in_malloc_do_not_deadlock) {
  const std::string other = (build_dir() / "guests" / "libcuda_in_malloc_preload.so").string();
  const std::string ours = (build_dir() / "libhmshim.so").string();
  const auto train = [&](const std::string& preloads, const Environment& extra) {
    Environment environment = extra;
    environment.emplace("SIMGPU_KERNELS", build_dir() / "guests" / "liblayers_kernels.so");
    environment.emplace("LD_PRELOAD", preloads);
    return run_guest({.program = guest_program("layers"),
                      .args = {"--allocates", "--iterations", "5"},
                      .environment = on_simgpu(environment),
                      .timeout = std::chrono::seconds(30)});
  };
  const GuestResult alone = train("", {{"SIMGPU_CAPACITY", "1GiB"}});
  ASSERT_TRUE(alone.succeeded()) << alone.describe();
  for (const std::string& preloads : {other + ":" + ours, ours + ":" + other}) {
    const GuestResult with = train(preloads, {{"SIMGPU_CAPACITY", "128MiB"}});
    EXPECT_TRUE(with.succeeded()) << preloads << "\n" << with.describe();
    EXPECT_EQ(with.out, alone.out) << preloads;
  }
}

}  // namespace
}  // namespace hmshim::support
