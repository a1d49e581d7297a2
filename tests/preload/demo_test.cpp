// The three runs of `make demo` in small, and the training program with each of its driver calls failing in turn.
#include <cuda.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

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

// A run that needs twice the device and makes few calls: eight tensors of 1 MiB, each of which occupies a 2 MiB block.
GuestResult train_smallest(const Environment& extra) {
  return run_guest({.program = guest_program("mlp"),
                    .args = {"--layers", "2", "--width", "512", "--iterations", "2"},
                    .environment = on_simgpu_with_shim(with(on_device_of("8MiB"), extra)),
                    .timeout = std::chrono::seconds(20)});
}

std::uint64_t occurrences(const std::string& text, const std::string& what) {
  std::uint64_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// The simulated driver's log, or nothing when cuInit did not succeed.
std::vector<nlohmann::json> driver_log(const std::filesystem::path& log) {
  return std::filesystem::exists(log) ? read_json_lines(log) : std::vector<nlohmann::json>{};
}

std::string text_of(int error) {
  switch (error) {
#define SIMGPU_ERROR(driver_name, runtime_name, text) \
  case driver_name:                                   \
    return text;
#include "tests/simgpu/errors.def"
#undef SIMGPU_ERROR
    default:
      return "error " + std::to_string(error);
  }
}

// Whether the guest names an error that the driver gave: the one that was injected, or one that followed from it. The
// runtime has an error of its own for the launch of a kernel that it could not get from the driver.
bool names_driver_error(const std::string& err, const std::vector<nlohmann::json>& log) {
  std::set<std::string> given = {text_of(CUDA_ERROR_UNKNOWN), "invalid device function"};
  for (const auto& record : log) {
    if (record.at("t") == "call" && record.at("result") != 0) given.insert(text_of(record.at("result").get<int>()));
  }
  return std::any_of(given.begin(), given.end(),
                     [&](const std::string& text) { return err.find(": " + text) != std::string::npos; });
}

// All calls while they are few; otherwise a sample, evenly spread, unless HMSHIM_TEST_CAMPAIGN asks for all.
TEST(Demo, sees_or_survives_each_failing_driver_call) {
  constexpr std::uint64_t kSampledCalls = 1000;
  const TempDir folder;
  const auto clean = train_smallest({{"SIMGPU_LOG", folder.file("clean")}});
  ASSERT_TRUE(clean.succeeded()) << clean.describe();
  const auto clean_end = driver_log(folder.file("clean")).back();
  ASSERT_EQ(clean_end.at("live_allocations"), 0) << "the training program frees all that it allocates";
  const auto calls = clean_end.at("calls").get<std::uint64_t>();
  const std::uint64_t step = std::getenv("HMSHIM_TEST_CAMPAIGN") != nullptr ? 1 : 1 + calls / kSampledCalls;

  for (std::uint64_t call = 1; call <= calls; call += step) {
    SCOPED_TRACE("driver call " + std::to_string(call) + " of " + std::to_string(calls) + " fails");
    const std::string log_path = folder.file("failing");
    std::filesystem::remove(log_path);
    const auto result = train_smallest(
        {{"SIMGPU_FAIL", "*:" + std::to_string(call) + ":CUDA_ERROR_UNKNOWN"}, {"SIMGPU_LOG", log_path}});
    const auto log = driver_log(log_path);
    ASSERT_FALSE(result.timed_out) << result.describe();
    if (result.succeeded()) {
      EXPECT_EQ(result.out, clean.out) << result.describe();
    } else {
      EXPECT_EQ(result.exit_status, 1) << result.describe();
      EXPECT_TRUE(names_driver_error(result.err, log)) << result.describe();
    }
    // What the program could not free stays, and keeps the pool in which it lies; the library leaves nothing else.
    if (!log.empty()) {
      EXPECT_EQ(log.back().at("live_allocations") > 0, occurrences(result.err, "mlp: cudaFree: ") > 0)
          << result.describe();
    }
  }
}

}  // namespace
}  // namespace hmshim::support
