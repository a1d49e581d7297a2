// A thread that is cancelled inside a driver call unwinds through the wrapper's frames.
#include <gtest/gtest.h>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

GuestResult run_cancelled(const Environment& extra) {
  Environment environment = {{"LD_LIBRARY_PATH", build_dir() / "null_driver"}};
  environment.insert(extra.begin(), extra.end());
  return run_guest({.program = guest_program("cancelled_thread"), .args = {}, .environment = environment});
}

TEST(Cancellation, ends_the_thread_and_not_the_program) {
  const auto bare = run_cancelled({});
  ASSERT_TRUE(bare.succeeded()) << bare.describe();
  ASSERT_TRUE(bare.out.ends_with("cancelled\n")) << bare.describe();
  const auto with_shim =
      run_cancelled({{"LD_PRELOAD", build_dir() / "libhmshim.so"}, {"HMSHIM_MANAGED_LIMIT", "1GiB"}});
  EXPECT_TRUE(with_shim.succeeded()) << with_shim.describe();
  // The total shows that the library is at work.
  EXPECT_EQ(with_shim.out, "total 1073741824\ncancelled\n") << with_shim.describe();
}

}  // namespace
}  // namespace hmshim::support
