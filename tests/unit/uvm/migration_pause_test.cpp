#include "uvm/migration_pause.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace hmshim::uvm {
namespace {

using namespace std::chrono_literals;

TEST(MigrationPause, a_fork_waits_for_the_call_under_way) {
  MigrationPause pause;
  std::atomic<bool> has_begun{false};
  std::atomic<bool> has_ended{false};
  std::thread migrator([&] {
    const MigrationPause::Call call(pause);
    has_begun = true;
    std::this_thread::sleep_for(10ms);
    has_ended = true;
  });
  while (!has_begun) std::this_thread::yield();
  pause.begin({});
  EXPECT_TRUE(has_ended);
  pause.end();
  migrator.join();
}

TEST(MigrationPause, no_call_begins_while_processes_fork) {
  MigrationPause pause;
  std::atomic<bool> has_begun{false};
  pause.begin({});
  pause.begin({});
  std::thread migrator([&] {
    const MigrationPause::Call call(pause);
    has_begun = true;
  });
  pause.end();
  std::this_thread::sleep_for(10ms);
  EXPECT_FALSE(has_begun);
  pause.end();
  migrator.join();
}

// A handler at the fork that waits for the device, say, needs what the migrators are to bring.
TEST(MigrationPause, neither_side_waits_for_ever) {
  MigrationPause pause;
  {
    const MigrationPause::Call call(pause);
    pause.begin({});
  }
  { const MigrationPause::Call call(pause); }
  pause.end();
}

TEST(MigrationPause, a_simulated_device_is_told_of_the_wait) {
  static thread_local int depth = 0;
  static thread_local int waits = 0;
  DriverApi api;
  api.simgpu_begin_external_wait = [] { ++depth, ++waits; };
  api.simgpu_end_external_wait = [] { --depth; };
  MigrationPause pause;
  pause.begin(api);
  pause.end();
  EXPECT_EQ(waits, 0);
  const MigrationPause::Call call(pause);
  pause.begin(api);
  pause.end();
  EXPECT_EQ(waits, 1);
  EXPECT_EQ(depth, 0);
}

}  // namespace
}  // namespace hmshim::uvm
