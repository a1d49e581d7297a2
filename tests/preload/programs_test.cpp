// Programs of other kinds than the test programs, which must live under the library as if it were not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

std::string library() { return build_dir() / "libhmshim.so"; }

GuestResult run(const std::filesystem::path& program, const std::vector<std::string>& args,
                const Environment& environment) {
  return run_guest({.program = program, .args = args, .environment = environment});
}

// Both outputs are the same to the byte, and the library was at work.
void expect_same(const std::filesystem::path& program, const std::vector<std::string>& args,
                 const Environment& preloaded = {}) {
  const TempDir folder;
  Environment environment = preloaded;
  environment.emplace("LD_PRELOAD", library());
  environment.emplace("HMSHIM_REPORT", folder.file("r.jsonl"));
  const GuestResult without = run(program, args, on_simgpu());
  ASSERT_TRUE(without.succeeded()) << without.describe();
  const GuestResult with = run(program, args, on_simgpu(environment));
  EXPECT_TRUE(with.succeeded()) << with.describe();
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(with.err, without.err);
  EXPECT_GT(read_json_lines(folder.file("r.jsonl")).back().at("allocations").at("managed").at("count"), 0);
}

TEST(Programs, python_with_numpy_computes_the_same) {
  expect_same("/usr/bin/python3", {(source_dir() / "tests/guests/numpy_program.py").string()});
}

// One C++ runtime a process: had the library brought the system's along, the program's own, newer one would not be
// loaded.
TEST(Programs, one_with_a_newer_cxx_runtime_finds_it) {
  const auto program = build_dir() / "guests" / "conda" / "program";
  EXPECT_EQ(run(program, {}, {}).out, "42\n");
  const GuestResult with = run(program, {}, {{"LD_PRELOAD", library()}});
  EXPECT_EQ(with.out, "42\n") << with.describe();
  EXPECT_EQ(with.err, "");
  const GuestResult other = run(program, {}, {{"LD_PRELOAD", build_dir() / "guests" / "libneeds_cxx_preload.so"}});
  EXPECT_FALSE(other.succeeded()) << "a library that needs the system's runtime should have been in the way";
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsInstrumented = true;
#else
constexpr bool kIsInstrumented = false;
#endif

// A guest of another build than the library's.
std::filesystem::path instrumented(const std::string& name) { return build_dir() / "guests" / "instrumented" / name; }

TEST(Programs, one_with_the_address_sanitizer_runs_and_finds_nothing) {
  if (kIsInstrumented) GTEST_SKIP() << "the library is instrumented itself";
  // It insists on being first among the preloads.
  expect_same(instrumented("address"), {"work"}, {{"LD_PRELOAD", std::string(HMSHIM_TEST_LIBASAN) + ":" + library()}});
}

TEST(Programs, one_with_the_thread_sanitizer_runs_and_finds_nothing) {
  if (kIsInstrumented) GTEST_SKIP() << "the library is instrumented itself";
  expect_same(instrumented("thread"), {"work"});
}

TEST(Programs, the_shell_and_what_it_starts_print_the_same) {
  const std::vector<std::string> args = {"-c", "for i in 1 2 3; do /bin/true && echo $i | cat; done; exit 5"};
  const GuestResult with = run("/bin/sh", args, {{"LD_PRELOAD", library()}});
  EXPECT_EQ(with.out, "1\n2\n3\n");
  EXPECT_EQ(with.err, "");
  EXPECT_EQ(with.exit_status, 5);
}

}  // namespace
}  // namespace hmshim::support
