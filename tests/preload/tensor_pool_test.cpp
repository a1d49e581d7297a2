// Tensors of the library's own pool, against a program that knows what must be in each: no byte of a live tensor is
// ever lost, whatever was freed, used again and discarded around it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

// `make campaign` runs the long form: 120,000 sequences.
const bool kIsCampaign = std::getenv("HMSHIM_TEST_SEEDS") != nullptr;

unsigned new_seed() {
  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  return seed;
}

struct Churned {
  GuestResult result;
  nlohmann::json figures;  // of the simulated GPU, at the end
  nlohmann::json exit;     // the report's exit record
};

Churned churn(const TempDir& folder, unsigned seed, int sequences, const Environment& more,
              const char* extra = nullptr) {
  Environment environment =
      on_simgpu_with_shim({{"SIMGPU_CAPACITY", "32MiB"},
                           {"SIMGPU_KERNELS", build_dir() / "guests" / "libtensor_churn_kernels.so"},
                           {"SIMGPU_LOG", folder.file("log")},
                           {"HMSHIM_REPORT", folder.file("report")}});
  environment.insert(more.begin(), more.end());
  std::vector<std::string> args{std::to_string(seed), std::to_string(sequences)};
  if (extra != nullptr) args.emplace_back(extra);
  Churned run{run_guest({.program = guest_program("tensor_churn"),
                         .args = args,
                         .environment = environment,
                         .timeout = std::chrono::minutes(10)}),
              {},
              {}};
  run.figures = read_json_lines(folder.file("log")).back();
  run.exit = read_json_lines(folder.file("report")).back();
  return run;
}

std::uint64_t total(const Churned& run, const char* counter) {
  return run.exit.at("devices").at(0).at(counter).get<std::uint64_t>();
}

void expect_nothing_lost(const Churned& run) {
  EXPECT_TRUE(run.result.succeeded()) << run.result.describe();
  EXPECT_NE(run.result.out.find(" wrong 0 figures agree\n"), std::string::npos) << run.result.describe();
  EXPECT_EQ(run.figures.at("reads_after_discard"), 0);
  EXPECT_EQ(run.figures.at("writes_after_discard"), 0);
  EXPECT_EQ(run.exit.at("gate"), "active");
}

TEST(TensorPoolCampaign, no_live_byte_is_lost_in_random_sequences) {
  for (int round = 0; round < (kIsCampaign ? 10 : 1); ++round) {
    const TempDir folder;
    const Churned run = churn(folder, new_seed(), kIsCampaign ? 10'000 : 2'000, {});
    expect_nothing_lost(run);
    EXPECT_GT(total(run, "discarded_bytes"), 0u) << "the sequences must reach what they test";
    EXPECT_GT(run.figures.at("discarded_bytes"), 0);
    EXPECT_GT(total(run, "d2h_demote_bytes"), 0u);
  }
}

TEST(TensorPoolCampaign, no_live_byte_is_lost_in_iterations_that_the_policy_learns_and_that_change) {
  for (int round = 0; round < (kIsCampaign ? 10 : 1); ++round) {
    for (const char* policy : {"next_touch", "learned"}) {
      const TempDir folder;
      const Churned run =
          churn(folder, new_seed(), kIsCampaign ? 1'000 : 60, {{"HMSHIM_POLICY", policy}}, "iterations");
      expect_nothing_lost(run);
      EXPECT_GT(total(run, "discarded_bytes"), 0u);
      if (std::string_view(policy) == "learned") {
        EXPECT_GT(total(run, "planned_launches"), 0u);
        EXPECT_GT(total(run, "divergences"), 0u);
      }
    }
  }
}

TEST(TensorPoolCampaign, without_discard_dead_bytes_travel_and_nothing_is_lost_either) {
  const unsigned seed = new_seed();
  const TempDir on, off;
  const int sequences = kIsCampaign ? 10'000 : 500;
  const Churned with = churn(on, seed, sequences, {});
  const Churned without = churn(off, seed, sequences, {{"HMSHIM_DISCARD", "off"}});
  expect_nothing_lost(with);
  expect_nothing_lost(without);
  EXPECT_EQ(without.figures.at("discarded_bytes"), 0);
  EXPECT_LT(total(with, "d2h_demote_bytes"), total(without, "d2h_demote_bytes"));
}

TEST(TensorPool, a_program_that_reads_what_it_has_freed_is_noticed_by_this_test) {
  const TempDir folder;
  const Churned run = churn(folder, 1, 10, {}, "use-after-free");
  EXPECT_EQ(run.result.exit_status, 3) << run.result.describe();
}

TEST(TensorPool, serves_any_number_of_contexts_one_after_another) {
  const TempDir folder;
  const auto result = run_guest({.program = guest_program("contexts"),
                                 .args = {"1100"},
                                 .environment = on_simgpu_with_shim({{"HMSHIM_REPORT", folder.file("report")}})});
  EXPECT_EQ(result.out, "1100\n") << result.describe();
  EXPECT_EQ(read_json_lines(folder.file("report")).back().at("bypasses"), nlohmann::json::array());
}

TEST(TensorPool, keeps_what_a_graph_names_until_the_graph_is_gone_or_names_it_no_more) {
  const auto result = run_guest(
      {.program = guest_program("graph_memory"), .environment = on_simgpu_with_shim({{"SIMGPU_CAPACITY", "64MiB"}})});
  EXPECT_EQ(result.out,
            "4194304 bytes: the other has 7, the next its memory\n1000 bytes: the other has 7, the next its memory\n"
            "changed: memory is used again\n")
      << result.describe();
}

TEST(TensorPool, a_program_without_the_library_does_the_same) {
  const auto result = run_guest(
      {.program = guest_program("tensor_churn"),
       .args = {"1", "50"},
       .environment = on_simgpu(
           {{"SIMGPU_CAPACITY", "1GiB"}, {"SIMGPU_KERNELS", build_dir() / "guests" / "libtensor_churn_kernels.so"}})});
  EXPECT_TRUE(result.succeeded()) << result.describe();
}

}  // namespace
}  // namespace hmshim::support
