// The three runs of `make demo` in small, and the training program with each of its driver calls failing in turn.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

Environment on_device_of(const char* capacity) {
  return {{"SIMGPU_CAPACITY", capacity}, {"SIMGPU_KERNELS", build_dir() / "guests" / "libmlp_kernels.so"}};
}

Environment with(Environment environment, const Environment& more) {
  environment.insert(more.begin(), more.end());
  return environment;
}

// 64 MiB of weights, gradients and moments, in tensors of 4 MiB.
GuestResult train(const Environment& environment) {
  return run_guest({.program = guest_program("mlp"),
                    .args = {"--layers", "4", "--width", "1024", "--iterations", "4"},
                    .environment = environment});
}

TEST(Demo, runs_out_of_memory_without_the_library) {
  const auto result = train(on_simgpu(on_device_of("32MiB")));
  EXPECT_EQ(result.exit_status, 1) << result.describe();
  EXPECT_NE(result.err.find("mlp: out of memory: asked for 4194304 bytes"), std::string::npos) << result.describe();
  EXPECT_EQ(result.out, "");
}

TEST(Demo, trains_with_the_library_to_the_same_losses_and_weights) {
  const auto large = train(on_simgpu(on_device_of("256MiB")));
  ASSERT_TRUE(large.succeeded()) << large.describe();
  ASSERT_NE(large.out.find("iteration 4 loss "), std::string::npos) << large.describe();
  ASSERT_NE(large.out.find("weights "), std::string::npos) << large.describe();

  const auto small = train(on_simgpu_with_shim(on_device_of("32MiB")));
  EXPECT_TRUE(small.succeeded()) << small.describe();
  EXPECT_EQ(small.out, large.out) << small.describe();
  EXPECT_EQ(small.err, "") << "the library is silent by default";
}

TEST(Demo, reports_what_migrated_in_each_iteration) {
  const TempDir folder;
  const auto result =
      train(on_simgpu_with_shim(with(on_device_of("32MiB"), {{"HMSHIM_REPORT", folder.file("report.jsonl")}})));
  ASSERT_TRUE(result.succeeded()) << result.describe();

  int migrating = 0;
  for (const auto& record : read_json_lines(folder.file("report.jsonl"))) {
    if (record.at("kind") != "iteration") continue;
    EXPECT_GE(record.at("footprint_bytes").get<std::uint64_t>(), 64U << 20) << record;
    EXPECT_LE(record.at("resident_bytes").get<std::uint64_t>(), 32U << 20) << record;
    if (record.at("d2h_demote_bytes").get<std::uint64_t>() > 0) ++migrating;
  }
  // The period is only known after two iterations: at least the later ones are reported.
  EXPECT_GE(migrating, 2);
}

// The smallest run that needs twice the device: one layer, in tensors of 1 MiB that occupy 2 MiB each.
GuestResult train_smallest(const Environment& extra) {
  return run_guest({.program = guest_program("mlp"),
                    .args = {"--layers", "1", "--width", "512", "--iterations", "2"},
                    .environment = on_simgpu_with_shim(with(on_device_of("4MiB"), extra)),
                    .timeout = std::chrono::seconds(20)});
}

std::uint64_t occurrences(const std::string& text, const std::string& what) {
  std::uint64_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// The driver's own balance at the end of the process, or nothing when it was never initialised.
std::optional<nlohmann::json> final_figures(const std::filesystem::path& log) {
  if (!std::filesystem::exists(log)) return std::nullopt;
  const auto records = read_json_lines(log);
  if (records.empty() || records.back().at("t") != "end") return std::nullopt;
  return records.back();
}

// HMSHIM_TEST_CAMPAIGN=1 fails every call; otherwise a sample of at most kSampledCalls is taken, evenly spread.
TEST(Demo, sees_or_survives_each_failing_driver_call) {
  constexpr std::uint64_t kSampledCalls = 120;
  const TempDir folder;
  const auto clean = train_smallest({{"SIMGPU_LOG", folder.file("clean")}});
  ASSERT_TRUE(clean.succeeded()) << clean.describe();
  const auto figures = final_figures(folder.file("clean"));
  ASSERT_TRUE(figures.has_value());
  ASSERT_EQ(figures->at("live_allocations"), 0) << "the training program frees all that it allocates";
  const auto calls = figures->at("calls").get<std::uint64_t>();
  const std::uint64_t step = std::getenv("HMSHIM_TEST_CAMPAIGN") != nullptr ? 1 : 1 + calls / kSampledCalls;

  for (std::uint64_t call = 1; call <= calls; call += step) {
    SCOPED_TRACE("driver call " + std::to_string(call) + " of " + std::to_string(calls) + " fails");
    const std::string log = folder.file("failing");
    std::filesystem::remove(log);
    const auto result =
        train_smallest({{"SIMGPU_FAIL", "*:" + std::to_string(call) + ":CUDA_ERROR_UNKNOWN"}, {"SIMGPU_LOG", log}});
    ASSERT_FALSE(result.timed_out) << result.describe();
    if (result.succeeded()) {
      EXPECT_EQ(result.out, clean.out) << result.describe();
    } else {
      EXPECT_EQ(result.exit_status, 1) << result.describe();
      EXPECT_NE(result.err.find("unknown error"), std::string::npos) << result.describe();
    }
    // What the program could not free stays; the library may add nothing to it.
    if (const auto end = final_figures(log)) {
      EXPECT_EQ(end->at("live_allocations"), occurrences(result.err, "mlp: cudaFree: ")) << result.describe();
    }
  }
}

}  // namespace
}  // namespace hmshim::support
