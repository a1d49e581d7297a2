// HMSHIM_PROFILE: what one run has learned, the next one plans from its first iteration on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

using testing::HasSubstr;

GuestResult run(const std::string& profile, std::vector<std::string> args) {
  args.emplace_back("--times");
  return run_guest({.program = guest_program("layers"),
                    .args = args,
                    .environment = on_simgpu_with_shim(
                        {{"SIMGPU_CAPACITY", "128MiB"},
                         {"SIMGPU_KERNELS", (build_dir() / "guests" / "liblayers_kernels.so").string()},
                         {"HMSHIM_POLICY", "learned"},
                         {"HMSHIM_PROFILE", profile}})});
}

double iteration_ms(const GuestResult& result, int iteration) {
  const std::string line = "iteration " + std::to_string(iteration) + " ms ";
  const std::size_t at = result.out.find(line);
  return at == std::string::npos ? -1 : std::stod(result.out.substr(at + line.size()));
}

std::string weights(const GuestResult& result) { return result.out.substr(result.out.find("weights ")); }

TEST(Profile, the_first_iteration_of_the_next_run_is_planned) {
  const TempDir folder;
  const auto first = run(folder.file("profile"), {});
  EXPECT_EQ(first.err, "");
  ASSERT_TRUE(std::filesystem::exists(folder.file("profile"))) << first.describe();
  const auto second = run(folder.file("profile"), {});
  EXPECT_EQ(second.err, "");
  EXPECT_EQ(weights(second), weights(first));
  EXPECT_LT(iteration_ms(second, 1), 0.8 * iteration_ms(first, 1)) << second.out << first.out;
  EXPECT_LT(iteration_ms(second, 2), 0.6 * iteration_ms(first, 2)) << second.out << first.out;
}

TEST(Profile, of_another_program_is_refused_with_one_line_and_replaced) {
  const TempDir folder;
  const auto first = run(folder.file("profile"), {});
  const std::string before = read_file(folder.file("profile"));
  const auto other = run(folder.file("profile"), {"--layers", "6", "--mib", "12"});
  ASSERT_TRUE(other.succeeded()) << other.describe();
  EXPECT_THAT(other.err, HasSubstr("does not match: launch "));
  EXPECT_EQ(std::count(other.err.begin(), other.err.end(), '\n'), 1) << other.err;
  EXPECT_NE(read_file(folder.file("profile")), before);
}

TEST(Profile, that_is_cut_off_is_refused_and_replaced) {
  const TempDir folder;
  run(folder.file("profile"), {});
  const std::string whole = read_file(folder.file("profile"));
  write_file(folder.file("profile"), whole.substr(0, whole.size() / 2));
  const auto result = run(folder.file("profile"), {});
  EXPECT_THAT(result.err, HasSubstr("is not used: line "));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(read_file(folder.file("profile")), whole);
}

TEST(Profile, a_file_that_is_none_is_left_as_it_is) {
  const TempDir folder;
  write_file(folder.file("thesis"), "Chapter 1\n");
  const auto result = run(folder.file("thesis"), {});
  ASSERT_TRUE(result.succeeded()) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("is not used and left as it is"));
  EXPECT_EQ(read_file(folder.file("thesis")), "Chapter 1\n");
}

TEST(Profile, that_cannot_be_written_costs_a_line_and_nothing_else) {
  const TempDir folder;
  const auto result = run(folder.file("no/such/folder"), {});
  ASSERT_TRUE(result.succeeded()) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("could not be written: No such file or directory"));
}

TEST(Profile, lies_where_it_was_asked_for_when_the_program_goes_to_another_folder) {
  const TempDir folder;
  const auto result = run_guest({.program = "/usr/bin/env",
                                 .args = {"-C", folder.file(""), guest_program("layers").string(), "--moves"},
                                 .environment = on_simgpu_with_shim(
                                     {{"SIMGPU_CAPACITY", "128MiB"},
                                      {"SIMGPU_KERNELS", (build_dir() / "guests" / "liblayers_kernels.so").string()},
                                      {"HMSHIM_POLICY", "learned"},
                                      {"HMSHIM_PROFILE", "profile.%r"},
                                      {"RANK", "3"}})});
  ASSERT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(std::filesystem::exists(folder.file("profile.3")));
}

TEST(Profile, every_rank_can_have_its_own) {
  const TempDir folder;
  ASSERT_TRUE(run(folder.file("profile.%r"), {}).succeeded());
  EXPECT_TRUE(std::filesystem::exists(folder.file("profile.0")));
}

}  // namespace
}  // namespace hmshim::support
