// Traces small enough to work out by hand, played through the library on the simulated GPU.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Two weights of 64 MiB take turns; every launch runs for 1 ms.
constexpr const char* kTwoWeights =
    R"({"t":"h","workload":"two weights"}
{"t":"T","id":7,"bytes":67108864,"kind":"weight"}
{"t":"T","id":9,"bytes":67108864,"kind":"weight"}
{"t":"K","id":0,"name":"a","dur_us":1000,"in":[7],"out":[7]}
{"t":"K","id":1,"name":"b","dur_us":1000,"in":[9],"out":[9]}
)";

GuestResult replay(const std::string& trace, std::vector<std::string> args, const Environment& environment = {}) {
  const TempDir folder;
  write_file(folder.file("trace.jsonl"), trace);
  args.insert(args.begin(), {"--trace", folder.file("trace.jsonl")});
  return run_guest({.program = build_dir() / "bench" / "replay", .args = args, .environment = environment});
}

std::vector<std::string> by_ratio(const char* ratio) {
  return {"--policy", "on_demand", "--ideal-costs", "--ratio", ratio, "--iterations", "6", "--allocator", "sync"};
}

nlohmann::json json_of(const GuestResult& result) {
  EXPECT_TRUE(result.succeeded()) << result.describe();
  return nlohmann::json::parse(result.out);
}

nlohmann::json replay_by_ratio(const std::string& trace, const char* ratio) {
  std::vector<std::string> args = by_ratio(ratio);
  args.emplace_back("--json");
  return json_of(replay(trace, args));
}

TEST(Replay, takes_the_time_of_the_launches_where_all_fits) {
  const auto result = replay_by_ratio(kTwoWeights, "1");
  EXPECT_EQ(result["ideal_s"], 0.002);
  EXPECT_NEAR(result["steady_iteration_s"].get<double>(), 0.002, 1e-6);
  EXPECT_NEAR(result["pct_ideal"].get<double>(), 100, 0.1);
  EXPECT_EQ(result["h2d_bytes"], 0);
  EXPECT_EQ(result["d2h_bytes"], 0);
  EXPECT_EQ(result["peak_live_bytes"], 128 * kMiB);
  EXPECT_EQ(result["budget_bytes"], 128 * kMiB);
  EXPECT_EQ(result["peak_resident_bytes"], 128 * kMiB);
}

TEST(Replay, moves_what_takes_turns_once_each_way_an_iteration) {
  const auto result = replay_by_ratio(kTwoWeights, "2");
  EXPECT_EQ(result["budget_bytes"], 64 * kMiB);
  EXPECT_EQ(result["h2d_bytes"], 128 * kMiB);
  EXPECT_EQ(result["d2h_bytes"], 128 * kMiB);
  EXPECT_EQ(result["peak_resident_bytes"], 64 * kMiB);
  // Faults bring 2 MiB in 524 us.
  EXPECT_GT(result["stall_s"].get<double>(), 64 * 524e-6);
  EXPECT_NEAR(result["stall_s"].get<double>(), result["steady_iteration_s"].get<double>() - 0.002, 1e-9);
}

TEST(Replay, plays_a_launch_of_more_tensors_than_arguments_hold) {
  std::string trace;
  std::string operands;
  for (int id = 0; id < 600; ++id) {
    trace += R"({"t":"T","id":)" + std::to_string(id) + R"(,"bytes":2097152,"kind":"weight"})" + "\n";
    operands += (id == 0 ? "" : ",") + std::to_string(id);
  }
  trace += R"({"t":"K","name":"adamw","dur_us":1000,"in":[)" + operands + R"(],"out":[]})" + "\n";
  const auto result = replay_by_ratio(trace, "1");
  EXPECT_EQ(result["peak_resident_bytes"], 1200 * kMiB);
  EXPECT_NEAR(result["steady_iteration_s"].get<double>(), 0.001, 1e-6);
}

TEST(Replay, frees_what_an_iteration_gives_birth_to) {
  const std::string trace =
      R"({"t":"T","id":0,"bytes":33554432,"kind":"inter"}
{"t":"T","id":1,"bytes":33554432,"kind":"inter"}
{"t":"K","name":"a","dur_us":10,"in":[],"out":[0]}
{"t":"K","name":"b","dur_us":10,"in":[],"out":[1]}
)";
  const auto result = replay_by_ratio(trace, "1");
  EXPECT_EQ(result["peak_live_bytes"], 32 * kMiB);
  EXPECT_EQ(result["d2h_bytes"], 0);
}

// 60 weights of 8 MiB in turn, with room for 40 of them; a weight takes a third of a launch on the link.
std::string long_sweep() {
  std::string trace;
  for (int id = 0; id < 60; ++id)
    trace += R"({"t":"T","id":)" + std::to_string(id) + R"(,"bytes":8388608,"kind":"weight"})" + "\n";
  for (int id = 0; id < 60; ++id) {
    const std::string operand = std::to_string(id);
    trace +=
        R"({"t":"K","name":"k)" + operand + R"(","dur_us":1000,"in":[)" + operand + R"(],"out":[)" + operand + "]}\n";
  }
  return trace;
}

TEST(Replay, next_touch_hides_the_transfers_behind_the_launches) {
  const auto result = json_of(replay(
      long_sweep(), {"--policy", "next_touch", "--ideal-costs", "--ratio", "1.5", "--iterations", "12", "--json"}));
  EXPECT_GT(result["pct_ideal"], 95);
  EXPECT_EQ(result["fault_groups"], 0);
  EXPECT_EQ(result["h2d_bytes"], 60 * 8 * kMiB);
  EXPECT_EQ(result["d2h_eviction_bytes"], 0);
}

TEST(Replay, belady_moves_less_than_next_touch) {
  const auto result = json_of(
      replay(long_sweep(), {"--policy", "belady", "--ideal-costs", "--ratio", "1.5", "--iterations", "12", "--json"}));
  EXPECT_GT(result["pct_ideal"], 95);
  EXPECT_LT(result["h2d_bytes"], 60 * 8 * kMiB);
}

TEST(Replay, says_when_the_library_had_planned) {
  const auto result = json_of(
      replay(long_sweep(), {"--policy", "learned", "--ideal-costs", "--ratio", "1.5", "--iterations", "8", "--json"}));
  EXPECT_EQ(result["iterations_to_plan"], 2);
  EXPECT_GE(result["plans"], 1);
  EXPECT_GT(result["plan_evaluations"], 0);
  EXPECT_GT(result["plan_s"], 0);
  const auto unplanned = replay_by_ratio(kTwoWeights, "2");
  EXPECT_TRUE(unplanned["iterations_to_plan"].is_null());
  EXPECT_EQ(unplanned["plan_s"], 0);
}

TEST(Replay, compares_with_the_lower_bound_of_the_same_cell) {
  const TempDir folder;
  write_file(folder.file("bounds.json"), R"({"trace dur_us 25 GB/s 2x": {"bound_s": 0.004}})");
  const auto bounded = [&](const char* ratio) {
    std::vector<std::string> args = by_ratio(ratio);
    args.insert(args.end(), {"--json", "--bounds", folder.file("bounds.json")});
    return json_of(replay(kTwoWeights, args));
  };
  const auto result = bounded("2");
  EXPECT_EQ(result["bound_s"], 0.004);
  EXPECT_NEAR(result["pct_bound"].get<double>(), 0.4 / result["steady_iteration_s"].get<double>(), 1e-9);
  EXPECT_TRUE(bounded("3")["pct_bound"].is_null());
}

TEST(Replay, is_the_same_to_the_byte_in_every_run) {
  std::vector<std::string> args = by_ratio("1.7");
  args.emplace_back("--json");
  const std::string first = replay(kTwoWeights, args).out;
  EXPECT_NE(first, "");
  for (int run = 0; run < 3; ++run) EXPECT_EQ(replay(kTwoWeights, args).out, first);
}

TEST(Replay, ends_cleanly_where_device_and_host_together_are_too_small) {
  const auto result =
      replay(kTwoWeights, {"--policy", "on_demand", "--ideal-costs", "--budget", "32MiB", "--allocator", "sync"},
             {{"SIMGPU_CAPACITY", "32MiB"}, {"SIMGPU_HOST_RAM", "128MiB"}});
  EXPECT_EQ(result.exit_status, 1) << result.describe();
  EXPECT_NE(result.err.find("error: allocation of tensor 9, 67108864 bytes: CUDA_ERROR_OUT_OF_MEMORY"),
            std::string::npos)
      << result.describe();
  EXPECT_EQ(result.out, "");
}

TEST(Replay, plays_a_recording_as_its_lines_say) {
  const std::string recording =
      R"({"t":"h","schema":2,"workload":"mlp"}
{"t":"T","id":0,"bytes":33554432}
{"t":"T","id":1,"bytes":33554432}
{"t":"K","name":"a","dur_us":10,"in":[0],"out":[0]}
{"t":"S"}
{"t":"F","id":1}
{"t":"T","id":2,"bytes":33554432}
{"t":"K","name":"copy","dur_us":10,"in":[2],"out":[2]}
{"t":"E","calls":2,"estimated":0}
)";
  const auto result = replay_by_ratio(recording, "1");
  EXPECT_EQ(result["peak_live_bytes"], 64 * kMiB);
  EXPECT_EQ(result["launches"], 2);
  EXPECT_EQ(result["ideal_s"], 20e-6);

  const auto dead = replay(recording + R"({"t":"K","name":"b","dur_us":1,"in":[1],"out":[]})", by_ratio("1"));
  EXPECT_NE(dead.err.find("trace.jsonl:10: tensor 1 is dead"), std::string::npos) << dead.describe();
}

TEST(Replay, prints_a_table_for_people) {
  const auto result = replay(kTwoWeights, by_ratio("1"));
  EXPECT_NE(result.out.find("peak_live_bytes      0.125 GiB"), std::string::npos) << result.describe();
}

TEST(Replay, names_what_is_wrong_in_a_trace) {
  const auto result = replay("{\"t\":\"h\",\"schema\":3}\n", by_ratio("1"));
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_NE(result.err.find("trace.jsonl:1: schema 3 is not known"), std::string::npos) << result.describe();
}

TEST(Replay, names_what_is_wrong_on_its_command_line) {
  const auto result = replay(kTwoWeights, {"--policy", "on_demand", "--ideal-costs", "--ratio", "0"});
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_NE(result.err.find("--ratio needs a number above 0, not \"0\""), std::string::npos) << result.describe();
}

}  // namespace
}  // namespace hmshim::support
