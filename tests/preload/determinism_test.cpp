// What the virtual clock measures is the same however long the threads of guest and library really take.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

// 40 weights of 8 MiB in turn and activations that live from a launch of the first half to one of the second, so that a
// plan has something to choose.
std::string trace() {
  constexpr int kLayers = 40;
  std::string tensors, launches;
  const auto launch = [&](int id, const std::string& in, const std::string& out) {
    launches +=
        R"({"t":"K","name":"k)" + std::to_string(id) + R"(","dur_us":700,"in":[)" + in + R"(],"out":[)" + out + "]}\n";
  };
  for (int id = 0; id < 2 * kLayers; ++id) {
    tensors += R"({"t":"T","id":)" + std::to_string(id) + R"(,"bytes":8388608,"kind":")" +
               (id < kLayers ? "weight" : "inter") + "\"}\n";
  }
  const auto of = [](int id) { return std::to_string(id); };
  for (int id = 0; id < kLayers; ++id) launch(id, of(id), of(kLayers + id));
  for (int id = kLayers; id-- > 0;) launch(2 * kLayers - id, of(id) + "," + of(kLayers + id), of(id));
  return tensors + launches;
}

std::string replay(const char* policy, const Environment& environment) {
  const TempDir folder;
  write_file(folder.file("trace.jsonl"), trace());
  const GuestResult result = run_guest({.program = build_dir() / "bench" / "replay",
                                        .args = {"--trace", folder.file("trace.jsonl"), "--policy", policy, "--device",
                                                 "a100-40g-pcie4", "--ratio", "1.5", "--iterations", "9", "--json"},
                                        .environment = environment});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  nlohmann::json figures = nlohmann::json::parse(result.out, nullptr, false);
  figures.erase("plan_s");  // the planner's real time
  return figures.dump();
}

class Determinism : public testing::TestWithParam<const char*> {};

TEST_P(Determinism, threads_that_stop_at_random_change_no_figure) {
  const std::string calm = replay(GetParam(), {});
  const Environment jitter = {{"SIMGPU_KERNELS", (build_dir() / "guests" / "libjitter_kernels.so").string()}};
  for (int run = 0; run < 2; ++run) EXPECT_EQ(replay(GetParam(), jitter), calm);
}

INSTANTIATE_TEST_SUITE_P(Policies, Determinism, testing::Values("on_demand", "next_touch", "g10", "learned"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace hmshim::support
