// The promise of the launch path: no system call, no allocation, no lock wait, no driver call but the launch itself,
// once a program is in its steady state.
#include <gtest/gtest.h>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

constexpr const char* kDriversOwnFree = "free 68719476736\n";

GuestResult run_steady(const char* threads, const Environment& extra) {
  Environment environment = {{"LD_LIBRARY_PATH", build_dir() / "null_driver"}};
  environment.insert(extra.begin(), extra.end());
  return run_guest({.program = guest_program("steady_launch"), .args = {threads}, .environment = environment});
}

TEST(SteadyLaunch, makes_no_system_or_driver_call_and_no_allocation) {
  const auto result = run_steady("1", {{"LD_PRELOAD", build_dir() / "libhmshim.so"}});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_NE(result.out, kDriversOwnFree) << "the library was not at work";
}

TEST(SteadyLaunch, makes_no_system_or_driver_call_and_no_allocation_while_two_threads_launch) {
  const auto result = run_steady("2", {{"LD_PRELOAD", build_dir() / "libhmshim.so"}});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_NE(result.out, kDriversOwnFree) << "the library was not at work";
}

TEST(SteadyLaunch, the_program_alone_passes_its_own_filter) {
  const auto result = run_steady("2", {});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(result.out, kDriversOwnFree);
}

}  // namespace
}  // namespace hmshim::support
