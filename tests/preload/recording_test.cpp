// HMSHIM_TRACE: what is recorded of a program, and that its recording plays as the program did.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kIterations = 6;

// The training program of the demo on a device that holds it.
GuestResult train(const Environment& more, const char* capacity = "256MiB") {
  Environment environment = more;
  environment["SIMGPU_CAPACITY"] = capacity;
  environment["SIMGPU_KERNELS"] = build_dir() / "guests" / "libmlp_kernels.so";
  return run_guest({.program = guest_program("mlp"),
                    .args = {"--layers", "4", "--width", "1024", "--iterations", std::to_string(kIterations)},
                    .environment = on_simgpu_with_shim(environment)});
}

std::vector<json> of_type(const std::vector<json>& lines, const std::string& type) {
  std::vector<json> found;
  std::ranges::copy_if(lines, std::back_inserter(found), [&](const json& line) { return line.at("t") == type; });
  return found;
}

json figures(const GuestResult& played) {
  EXPECT_TRUE(played.succeeded()) << played.describe();
  return json::parse(played.out);
}

GuestResult replay(const std::string& trace, const std::string& iterations) {
  return run_guest({.program = build_dir() / "bench" / "replay",
                    .args = {"--trace", trace, "--policy", "on_demand", "--device", "h200-141g-pcie5", "--ratio", "0.5",
                             "--iterations", iterations, "--allocator", "sync", "--json"}});
}

TEST(Recording, plays_with_the_footprint_the_launches_and_the_time_of_the_program) {
  const TempDir folder;
  const auto quiet = train({});
  const auto recorded = train({{"HMSHIM_TRACE", folder.file("t.jsonl")},
                               {"HMSHIM_REPORT", folder.file("r.jsonl")},
                               {"SIMGPU_LOG", folder.file("log")}});
  ASSERT_TRUE(recorded.succeeded()) << recorded.describe();
  EXPECT_EQ(recorded.out, quiet.out);
  EXPECT_EQ(recorded.err, "");

  const std::vector<json> lines = read_json_lines(folder.file("t.jsonl"));
  const std::vector<json> calls = of_type(lines, "K");
  EXPECT_EQ(lines.front().at("workload"), "mlp");
  EXPECT_EQ(lines.back(), json({{"t", "E"}, {"calls", calls.size()}, {"estimated", 0}}));
  EXPECT_EQ(std::ranges::count(calls, "mlp_adam", [](const json& call) { return call.at("name"); }), 8 * kIterations);
  EXPECT_EQ(of_type(lines, "T").size(), of_type(lines, "F").size());

  const json exit = read_json_lines(folder.file("r.jsonl")).back();
  const json before = read_json_lines(folder.file("log")).back();
  const json played = figures(replay(folder.file("t.jsonl"), "1"));
  EXPECT_EQ(played.at("peak_live_bytes"),
            exit.at("allocations").at("managed").at("peak_bytes").get<std::uint64_t>() +
                exit.at("allocations").at("device").at("peak_bytes").get<std::uint64_t>());
  const json& totals = exit.at("devices").at(0);
  EXPECT_EQ(played.at("launches"),
            totals.at("launches").get<std::uint64_t>() + totals.at("copies").get<std::uint64_t>());
  const double recorded_s = 1e-9 * before.at("now_ns").get<double>();
  EXPECT_NEAR(played.at("steady_iteration_s").get<double>(), recorded_s, 0.1 * recorded_s);
}

TEST(Recording, can_be_cut_to_one_iteration) {
  const TempDir folder;
  ASSERT_TRUE(train({{"HMSHIM_TRACE", folder.file("t.jsonl")}}).succeeded());
  const auto cut = run_guest({.program = source_dir() / "scripts" / "cut_trace",
                              .args = {folder.file("t.jsonl"), "-o", folder.file("one.jsonl.gz")}});
  ASSERT_TRUE(cut.succeeded()) << cut.describe();
  const std::size_t calls = of_type(read_json_lines(folder.file("t.jsonl")), "K").size();
  const json played = figures(replay(folder.file("one.jsonl.gz"), "3"));
  EXPECT_GT(played.at("launches"), 0);
  EXPECT_LT(played.at("launches").get<std::size_t>() * kIterations, calls)
      << "what comes before and after is not in it";
  EXPECT_GT(played.at("launches").get<std::size_t>() * (kIterations + 2), calls * 3 / 4);
  EXPECT_GT(played.at("peak_live_bytes"), 48 << 20) << "weights and moments persist";
}

// Equal tensors: no kind of call has one call an iteration, by which its length would show between neighbours.
TEST(Recording, can_be_cut_where_each_kind_of_call_comes_many_times_an_iteration) {
  const TempDir folder;
  const auto trained = run_guest({.program = guest_program("layers"),
                                  .args = {"--layers", "4", "--mib", "2", "--iterations", "6", "--log-every", "1"},
                                  .environment = on_simgpu_with_shim({{"HMSHIM_TRACE", folder.file("t.jsonl")}})});
  ASSERT_TRUE(trained.succeeded()) << trained.describe();
  const auto cut = run_guest({.program = source_dir() / "scripts" / "cut_trace",
                              .args = {folder.file("t.jsonl"), "-o", folder.file("one.jsonl.gz")}});
  ASSERT_TRUE(cut.succeeded()) << cut.describe();
  EXPECT_EQ(figures(replay(folder.file("one.jsonl.gz"), "3")).at("launches"), 2 + 3 * 4 + 1) << cut.err;
}

TEST(Recording, process_and_rank_name_its_file) {
  const TempDir folder;
  ASSERT_TRUE(train({{"HMSHIM_TRACE", folder.file("t.%r.jsonl")}, {"RANK", "3"}}).succeeded());
  EXPECT_FALSE(read_json_lines(folder.file("t.3.jsonl")).empty());
}

TEST(Recording, neither_a_full_disk_nor_a_missing_folder_hurts_the_program) {
  const auto expected = train({});
  const auto full = train({{"HMSHIM_TRACE", "/dev/full"}});
  EXPECT_EQ(full.out, expected.out);
  EXPECT_THAT(full.err, AllOf(StartsWith("hmshim["), HasSubstr("trace /dev/full ends early: No space left on device")));
  EXPECT_EQ(std::ranges::count(full.err, '\n'), 1);
  const auto missing = train({{"HMSHIM_TRACE", "/nonexistent/t.jsonl"}});
  EXPECT_EQ(missing.out, expected.out);
  EXPECT_THAT(missing.err, AllOf(StartsWith("hmshim["), HasSubstr("/nonexistent/t.jsonl: No such file or directory")));
  EXPECT_EQ(std::ranges::count(missing.err, '\n'), 1);
}

}  // namespace
}  // namespace hmshim::support
