// Random sequences of calls with and without the library, and every driver call failing in turn. Short here; `make
// campaign` runs the long form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

constexpr const char* kLarge = "1GiB";
// Less than the arrays of a thread, 48 MiB at most, and room for those that are too small to be managed, 12 MiB at
// most.
constexpr const char* kSmall = "32MiB";
constexpr const char* kSmallForTwo = "48MiB";
constexpr const char* kSmallForFour = "80MiB";

int seeds() {
  const char* given = std::getenv("HMSHIM_TEST_SEEDS");
  return given != nullptr ? std::atoi(given) : 8;
}

Environment with_kernels(Environment environment, const Environment& more) {
  environment.emplace("SIMGPU_KERNELS", build_dir() / "guests" / "libsum_kernels.so");
  environment.insert(more.begin(), more.end());
  return environment;
}

GuestResult random_calls(int seed, int threads, const Environment& environment) {
  return run_guest({.program = guest_program("random_calls"),
                    .args = {std::to_string(seed), std::to_string(threads), "120"},
                    .environment = environment,
                    .timeout = std::chrono::seconds(120)});
}

void expect_same_calls(int threads, const Environment& extra) {
  for (int seed = 1; seed <= seeds(); ++seed) {
    const auto bare = random_calls(seed, threads, with_kernels(on_simgpu(), {{"SIMGPU_CAPACITY", kLarge}}));
    ASSERT_TRUE(bare.succeeded()) << "seed " << seed << "\n" << bare.describe();
    const TempDir folder;
    Environment environment = extra;
    environment.emplace("SIMGPU_LOG", folder.file("log"));
    const auto with_shim = random_calls(seed, threads, with_kernels(on_simgpu_with_shim(), environment));
    ASSERT_TRUE(with_shim.succeeded()) << "seed " << seed << "\n" << with_shim.describe();
    EXPECT_EQ(with_shim.out, bare.out) << "seed " << seed;
    EXPECT_EQ(with_shim.err, bare.err) << "seed " << seed;
    const auto figures = read_json_lines(folder.file("log")).back();
    EXPECT_EQ(figures.at("reads_after_discard"), 0) << "seed " << seed;
  }
}

TEST(Campaign, random_calls_give_the_same_on_a_device_that_holds_everything) {
  expect_same_calls(1, {{"SIMGPU_CAPACITY", kLarge}});
}
TEST(Campaign, random_calls_give_the_same_on_a_device_that_is_too_small) {
  expect_same_calls(1, {{"SIMGPU_CAPACITY", kSmall}});
}
TEST(Campaign, random_calls_of_four_threads_give_the_same_on_a_device_that_is_too_small) {
  expect_same_calls(4, {{"SIMGPU_CAPACITY", kSmallForFour}});
}
TEST(Campaign, random_calls_give_the_same_with_the_learned_policy) {
  expect_same_calls(2, {{"SIMGPU_CAPACITY", kSmallForTwo}, {"HMSHIM_POLICY", "learned"}});
}
TEST(Campaign, random_calls_give_the_same_when_the_policy_is_off) {
  expect_same_calls(1, {{"SIMGPU_CAPACITY", kLarge}, {"HMSHIM_POLICY", "off"}});
}

// ---- faults

std::size_t lines_of(const std::string& path) {
  const std::string text = read_file(path);
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

// From one fault to the next: all of them in the long form, a few in the short one.
std::size_t step_of(std::size_t faults) {
  return std::getenv("HMSHIM_TEST_EVERY_FAULT") != nullptr ? 1 : std::max<std::size_t>(faults / 12, 1);
}

// Every driver call of a program fails once; in the short form a few of them. The program may end with an error of its
// own, but neither by a signal nor never, and what it prints while all goes well it printed before.
void expect_survival(const std::string& family) {
  const TempDir folder;
  const auto run = [&](const Environment& more) {
    return run_guest({.program = guest_program("families"),
                      .args = {family},
                      .environment = with_kernels(on_simgpu_with_shim({{"SIMGPU_CAPACITY", "32MiB"}}), more),
                      .timeout = std::chrono::seconds(20)});
  };
  const auto whole = run({{"SIMGPU_LOG", folder.file("log")}});
  ASSERT_TRUE(whole.succeeded()) << whole.describe();
  const std::size_t calls = lines_of(folder.file("log"));
  for (std::size_t k = 1; k <= calls; k += step_of(calls)) {
    const auto failed = run({{"SIMGPU_FAIL", "*:" + std::to_string(k) + ":CUDA_ERROR_OUT_OF_MEMORY"}});
    EXPECT_FALSE(failed.timed_out) << "call " << k << "\n" << failed.describe();
    EXPECT_EQ(failed.signal, 0) << "call " << k << "\n" << failed.describe();
  }
}

TEST(Campaign, a_failing_call_is_survived_in_pointers) { expect_survival("pointers"); }
TEST(Campaign, a_failing_call_is_survived_in_pitch) { expect_survival("pitch"); }
TEST(Campaign, a_failing_call_is_survived_in_managed) { expect_survival("managed"); }
TEST(Campaign, a_failing_call_is_survived_in_escapes) { expect_survival("escapes"); }
TEST(Campaign, a_failing_call_is_survived_in_copies) { expect_survival("copies"); }
TEST(Campaign, a_failing_call_is_survived_in_graphs) { expect_survival("graphs"); }
TEST(Campaign, a_failing_call_is_survived_in_capture_beside) { expect_survival("capture_beside"); }
TEST(Campaign, a_failing_call_is_survived_in_tensor_maps) { expect_survival("tensor_maps"); }

// Whatever driver call fails: what the program frees is free.
void expect_balance(const Environment& extra) {
  const TempDir folder;
  const auto run = [&](const Environment& more) {
    Environment environment = on_simgpu_with_shim(extra);
    environment.insert(more.begin(), more.end());
    return run_guest({.program = guest_program("balance"),
                      .args = {},
                      .environment = environment,
                      .timeout = std::chrono::seconds(20)});
  };
  const auto whole = run({{"SIMGPU_LOG", folder.file("log")}});
  ASSERT_EQ(whole.out, "done\n") << whole.describe();
  const std::size_t calls = lines_of(folder.file("log"));
  for (std::size_t k = 1; k <= calls; k += step_of(calls)) {
    const auto failed = run({{"SIMGPU_FAIL", "*:" + std::to_string(k) + ":CUDA_ERROR_OUT_OF_MEMORY"}});
    EXPECT_EQ(failed.out, "done\n") << "call " << k << "\n" << failed.describe();
  }
}

TEST(Campaign, whatever_call_fails_the_books_balance) { expect_balance({{"SIMGPU_CAPACITY", "256MiB"}}); }
TEST(Campaign, whatever_call_fails_the_books_balance_on_a_device_that_is_too_small) {
  expect_balance({{"SIMGPU_CAPACITY", "32MiB"}});
}
TEST(Campaign, whatever_call_fails_the_books_balance_with_the_learned_policy) {
  expect_balance({{"SIMGPU_CAPACITY", "32MiB"}, {"HMSHIM_POLICY", "learned"}});
}

// ---- the library's own allocations

// Each fails once: the program does what it does when none fails. Where it needs the library to fit, it may be told
// that memory is out.
void expect_indifference(const std::string& guest, const std::vector<std::string>& args, const Environment& extra,
                         bool needs_library = false) {
  const TempDir folder;
  const auto run = [&](const Environment& more) {
    Environment environment = extra;
    environment.insert(more.begin(), more.end());
    environment["LD_PRELOAD"] = (build_dir() / "guests" / "liballocation_faults_preload.so").string() + ":" +
                                (build_dir() / "libhmshim.so").string();
    return run_guest({.program = guest_program(guest),
                      .args = args,
                      .environment = on_simgpu(environment),
                      .timeout = std::chrono::seconds(30)});
  };
  const auto whole = run({{"GUEST_ALLOCATIONS", folder.file("count")}});
  ASSERT_TRUE(whole.succeeded()) << whole.describe();
  const auto allocations = static_cast<std::size_t>(std::stoul(read_file(folder.file("count"))));
  ASSERT_GT(allocations, 20U);
  for (std::size_t k = 1; k <= allocations; k += step_of(allocations)) {
    const auto failed = run({{"GUEST_FAIL_ALLOCATION", std::to_string(k)}});
    if (needs_library && failed.err.ends_with("out of memory\n") && failed.exit_status == 1) continue;
    EXPECT_TRUE(failed.succeeded()) << "allocation " << k << "\n" << failed.describe();
    EXPECT_EQ(failed.out, whole.out) << "allocation " << k;
  }
}

TEST(Campaign, a_failing_allocation_of_the_librarys_own_changes_nothing_in_pointers) {
  expect_indifference("families", {"pointers"}, with_kernels({{"SIMGPU_CAPACITY", kLarge}}, {}));
}
TEST(Campaign, a_failing_allocation_of_the_librarys_own_changes_nothing_in_graphs) {
  expect_indifference("families", {"graphs"}, with_kernels({{"SIMGPU_CAPACITY", kLarge}}, {}));
}
TEST(Campaign, a_failing_allocation_of_the_librarys_own_changes_nothing_in_random_calls) {
  expect_indifference("random_calls", {"1", "1", "60"}, with_kernels({{"SIMGPU_CAPACITY", kLarge}}, {}));
}
TEST(Campaign, a_failing_allocation_of_the_librarys_own_changes_nothing_under_a_plan) {
  expect_indifference("layers", {"--iterations", "5"},
                      {{"SIMGPU_CAPACITY", "128MiB"},
                       {"HMSHIM_POLICY", "learned"},
                       {"SIMGPU_KERNELS", build_dir() / "guests" / "liblayers_kernels.so"}},
                      true);
}

}  // namespace
}  // namespace hmshim::support
