// A capture takes nothing from the streams beside it, and small allocations nothing from launches on large ones.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

// The guest's output with the library equals its output without.
void expect_same(const char* program, const std::vector<std::string>& args, const char* capacity) {
  const Environment environment = {{"SIMGPU_CAPACITY", capacity},
                                   {"SIMGPU_KERNELS", build_dir() / "guests/libsum_kernels.so"}};
  const auto bare = run_guest({.program = guest_program(program), .args = args, .environment = on_simgpu(environment)});
  ASSERT_TRUE(bare.succeeded()) << bare.describe();
  for (const char* policy : {"on_demand", "learned"}) {
    Environment with = environment;
    with["HMSHIM_POLICY"] = policy;
    const auto result =
        run_guest({.program = guest_program(program), .args = args, .environment = on_simgpu_with_shim(with)});
    EXPECT_TRUE(result.succeeded()) << policy << "\n" << result.describe();
    EXPECT_EQ(result.out, bare.out) << policy;
  }
}

TEST(BesideCapture, memory_in_use_is_not_reused_after_the_capture) {
  expect_same("beside_capture", {"reuse"}, "256MiB");
}

TEST(BesideCapture, an_allocation_on_another_stream_does_not_spoil_it) {
  expect_same("beside_capture", {"allocate"}, "256MiB");
}

TEST(SmallAllocations, leave_room_for_a_launch_on_managed_memory) { expect_same("small_fill", {}, "64MiB"); }

TEST(PreloadReport, a_fifo_that_nobody_reads_does_not_hold_the_program) {
  const TempDir folder;
  const std::string fifo = folder.file("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const auto result = run_guest({.program = guest_program("fits"),
                                 .args = {},
                                 .environment = on_simgpu_with_shim({{"HMSHIM_REPORT", fifo}}),
                                 .timeout = std::chrono::seconds(30)});
  EXPECT_FALSE(result.timed_out) << result.describe();
  EXPECT_TRUE(result.succeeded()) << result.describe();
}

}  // namespace
}  // namespace hmshim::support
