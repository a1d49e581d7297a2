// The policy `learned` on the simulated GPU: a training loop of twice the device's memory, planned from its third
// iteration on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

// Tensors of 8 MiB: 8 weights, 8 gradients, 9 activations and one more; the budget is 90 % of the device.
constexpr const char* kSmall = "128MiB";
constexpr const char* kLarge = "1GiB";

Environment device(const char* capacity) {
  return {{"SIMGPU_CAPACITY", capacity}, {"SIMGPU_KERNELS", build_dir() / "guests" / "liblayers_kernels.so"}};
}

GuestResult run(const Environment& environment, const std::vector<std::string>& args) {
  return run_guest({.program = guest_program("layers"), .args = args, .environment = environment});
}

GuestResult run_with(const char* policy, const std::vector<std::string>& args, const Environment& more = {}) {
  Environment environment = device(kSmall);
  environment["HMSHIM_POLICY"] = policy;
  for (const auto& [name, value] : more) environment[name] = value;
  return run(on_simgpu_with_shim(environment), args);
}

// The line that begins with `weights`.
std::string weights(const GuestResult& result) {
  const std::size_t at = result.out.find("weights ");
  return at == std::string::npos ? "nothing" : result.out.substr(at);
}

std::vector<double> iteration_ms(const GuestResult& result) {
  std::vector<double> times;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    int iteration = 0;
    double ms = 0;
    if (std::sscanf(line.c_str(), "iteration %d ms %lf", &iteration, &ms) == 2) times.push_back(ms);
  }
  return times;
}

nlohmann::json totals(const std::string& report) {
  for (const auto& record : read_json_lines(report)) {
    if (record.at("kind") == "exit") return record.at("devices").at(0);
  }
  return {};
}

TEST(Learned, is_twice_as_fast_as_on_demand_from_the_third_iteration_on) {
  const auto demand = run_with("on_demand", {"--times"});
  const auto learned = run_with("learned", {"--times"});
  ASSERT_TRUE(learned.succeeded()) << learned.describe();
  EXPECT_EQ(weights(learned), weights(demand));
  EXPECT_EQ(learned.err, "");
  const auto demand_ms = iteration_ms(demand), learned_ms = iteration_ms(learned);
  ASSERT_EQ(learned_ms.size(), 6U);
  EXPECT_LT(learned_ms[2], 0.65 * demand_ms[2]) << "the first planned iteration still finds data in the wrong place";
  for (std::size_t i = 3; i < 6; ++i) EXPECT_LT(learned_ms[i], 0.5 * demand_ms[i]) << "iteration " << i + 1;
}

TEST(Learned, misses_nothing_in_the_steady_state) {
  const TempDir folder;
  const auto result = run_with("learned", {}, {{"HMSHIM_REPORT", folder.file("report")}});
  ASSERT_TRUE(result.succeeded()) << result.describe();
  int steady = 0;
  for (const auto& record : read_json_lines(folder.file("report"))) {
    if (record.at("kind") != "iteration" || record.at("iteration").get<int>() == 0) continue;
    if (record.at("planned_launches").get<int>() < 20) continue;
    EXPECT_EQ(record.at("h2d_demand_bytes"), 0) << record;
    ++steady;
  }
  EXPECT_GE(steady, 3);
}

TEST(Learned, gives_the_same_virtual_times_in_every_run) {
  const auto first = run_with("learned", {"--times", "--allocates", "--log-every", "1"});
  ASSERT_TRUE(first.succeeded()) << first.describe();
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(run_with("learned", {"--times", "--allocates", "--log-every", "1"}).out, first.out);
}

// Whatever the program does: its results are those of a device on which everything fits, and all of it takes at most so
// much of the time on demand.
void expect_same_results_and_time(std::vector<std::string> args, double most_of_demand) {
  args.emplace_back("--times");
  const auto fits = run(on_simgpu(device(kLarge)), args);
  const auto demand = run_with("on_demand", args);
  const auto learned = run_with("learned", args);
  ASSERT_TRUE(learned.succeeded()) << learned.describe();
  EXPECT_EQ(weights(learned), weights(fits)) << learned.describe();
  const auto demand_ms = iteration_ms(demand), learned_ms = iteration_ms(learned);
  const double demand_sum = std::accumulate(demand_ms.begin(), demand_ms.end(), 0.0);
  const double learned_sum = std::accumulate(learned_ms.begin(), learned_ms.end(), 0.0);
  EXPECT_LE(learned_sum, most_of_demand * demand_sum) << learned.describe() << demand.out;
}

// Where there is nothing to be won.
constexpr double kNeverWorse = 1.02;

TEST(Learned, allocations_that_come_and_go) { expect_same_results_and_time({"--allocates"}, 0.8); }
TEST(Learned, short_kernels) { expect_same_results_and_time({"--us", "50"}, 0.9); }
TEST(Learned, long_kernels) { expect_same_results_and_time({"--us", "2000", "--layers", "12", "--mib", "5"}, 0.9); }
TEST(Learned, short_evaluations) { expect_same_results_and_time({"--evaluate-every", "2"}, 0.8); }
TEST(Learned, short_evaluations_that_allocate) {
  expect_same_results_and_time({"--evaluate-every", "3", "--allocates"}, kNeverWorse);
}
TEST(Learned, evaluations_that_become_a_plan_of_their_own) {
  expect_same_results_and_time({"--evaluate-every", "3", "--evaluate-for", "12", "--iterations", "9"}, 0.6);
}
TEST(Learned, a_warm_up_and_evaluations) {
  expect_same_results_and_time({"--warm-up", "5", "--evaluate-every", "4", "--evaluate-for", "3", "--iterations", "12"},
                               0.7);
}
TEST(Learned, logged_values) { expect_same_results_and_time({"--log-every", "1"}, 0.8); }
TEST(Learned, evaluations_and_logged_values) {
  expect_same_results_and_time({"--allocates", "--evaluate-every", "2", "--log-every", "3", "--iterations", "9"},
                               kNeverWorse);
}
TEST(Learned, accumulated_gradients) { expect_same_results_and_time({"--accumulate", "3"}, 0.7); }
TEST(Learned, accumulated_gradients_of_allocated_activations) {
  expect_same_results_and_time({"--accumulate", "3", "--allocates", "--log-every", "2"}, kNeverWorse);
}
TEST(Learned, two_models_that_look_alike_in_turn) {
  expect_same_results_and_time({"--models", "2", "--iterations", "8"}, kNeverWorse);
}
TEST(Learned, a_sequence_that_grows) { expect_same_results_and_time({"--grows", "--allocates"}, kNeverWorse); }
TEST(Learned, another_order_in_every_iteration) { expect_same_results_and_time({"--shuffles"}, kNeverWorse); }

TEST(Learned, a_phase_that_comes_back_is_planned_from_its_first_iteration_on) {
  const std::vector<std::string> args = {"--models", "2", "--turn", "4", "--iterations", "24", "--times"};
  const auto fits = run(on_simgpu(device(kLarge)), args);
  const auto demand = run_with("on_demand", args);
  const auto learned = run_with("learned", args);
  ASSERT_TRUE(learned.succeeded()) << learned.describe();
  EXPECT_EQ(weights(learned), weights(fits)) << learned.describe();
  const auto demand_ms = iteration_ms(demand), learned_ms = iteration_ms(learned);
  ASSERT_EQ(learned_ms.size(), 24U);
  for (std::size_t i = 8; i < 24; ++i) EXPECT_LT(learned_ms[i], 0.7 * demand_ms[i]) << "iteration " << i + 1;
}

TEST(Learned, a_program_that_exits_in_the_middle_of_a_planned_iteration_ends) {
  const auto result = run_with("learned", {"--stop-at", "5"});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_LT(result.seconds, 20);
}

TEST(Learned, children_forked_in_the_middle_of_planned_iterations_leave_it_alone) {
  const TempDir folder;
  const std::vector<std::string> args = {"--fork-every", "1", "--iterations", "8"};
  const auto fits = run(on_simgpu(device(kLarge)), args);
  const auto result = run_with("learned", args, {{"HMSHIM_REPORT", folder.file("report")}});
  ASSERT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(result.out, fits.out);
  EXPECT_EQ(result.err, fits.err);
  const auto records = read_json_lines(folder.file("report"));
  EXPECT_EQ(std::ranges::count_if(records, [](const auto& record) { return record.at("kind") == "exit"; }), 1);
  EXPECT_GT(totals(folder.file("report")).at("planned_launches"), 0);
}

TEST(Learned, plans_nothing_where_everything_fits) {
  const TempDir folder;
  const auto result = run(on_simgpu_with_shim([&] {
                            Environment environment = device(kLarge);
                            environment["HMSHIM_POLICY"] = "learned";
                            environment["HMSHIM_REPORT"] = folder.file("report");
                            return environment;
                          }()),
                          {});
  ASSERT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(totals(folder.file("report")).at("plans"), 0);
}

}  // namespace
}  // namespace hmshim::support
