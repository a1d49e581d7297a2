#include "interpose/event_queue.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

namespace hmshim::interpose {
namespace {

using policy::ExtentId;

policy::Launch launch_of(std::uint64_t tick, const std::vector<ExtentId>& extents) {
  return {tick, tick * 3, tick * 7, extents};
}

TEST(EventQueue, hands_out_what_was_pushed_in_order_whatever_its_length) {
  EventQueue queue(1024);
  std::vector<std::vector<ExtentId>> pushed;
  for (const std::size_t count : {0u, 1u, 6u, 7u, 8u, 14u, 15u, 512u}) {
    std::vector<ExtentId> extents(count);
    std::iota(extents.begin(), extents.end(), static_cast<ExtentId>(count));
    ASSERT_TRUE(queue.push(launch_of(pushed.size(), extents), pushed.size() % 2 == 1));
    pushed.push_back(extents);
  }
  std::size_t seen = 0;
  queue.drain([&](const policy::Launch& launch, bool is_copy) {
    EXPECT_EQ(launch.tick, seen);
    EXPECT_EQ(launch.signature, seen * 3);
    EXPECT_EQ(launch.time_ns, seen * 7);
    EXPECT_EQ(is_copy, seen % 2 == 1);
    EXPECT_EQ(std::vector<ExtentId>(launch.touched.begin(), launch.touched.end()), pushed[seen]);
    ++seen;
  });
  EXPECT_EQ(seen, pushed.size());
}

TEST(EventQueue, refuses_and_counts_what_does_not_fit_and_takes_events_again_after_a_drain) {
  EventQueue queue(8);
  for (std::uint64_t tick = 0; tick < 8; ++tick) ASSERT_TRUE(queue.push(launch_of(tick, {1}), false));
  EXPECT_FALSE(queue.push(launch_of(8, {1}), false));
  EXPECT_EQ(queue.lost(), 1u);
  std::uint64_t seen = 0;
  queue.drain([&](const policy::Launch&, bool) { ++seen; });
  EXPECT_EQ(seen, 8u);
  EXPECT_TRUE(queue.push(launch_of(9, std::vector<ExtentId>(7 * 8)), false));
  EXPECT_FALSE(queue.push(launch_of(10, {}), false));
}

TEST(EventQueue, wraps_round_many_times_without_mixing_events) {
  EventQueue queue(16);
  std::uint64_t next = 0;
  for (std::uint64_t tick = 0; tick < 1000; ++tick) {
    const std::vector<ExtentId> extents(tick % 20, static_cast<ExtentId>(tick));
    ASSERT_TRUE(queue.push(launch_of(tick, extents), false));
    if (tick % 3 != 2) continue;
    queue.drain([&](const policy::Launch& launch, bool) {
      EXPECT_EQ(launch.tick, next);
      EXPECT_EQ(launch.touched.size(), next % 20);
      for (const ExtentId extent : launch.touched) EXPECT_EQ(extent, next);
      ++next;
    });
  }
}

TEST(EventQueue, loses_nothing_it_accepted_from_several_threads) {
  EventQueue queue(256);
  constexpr int kThreads = 4;
  constexpr std::uint64_t kEach = 20000;
  std::vector<std::uint64_t> accepted(kThreads);
  std::vector<std::uint64_t> received(kThreads);
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        const std::vector<ExtentId> extents(1 + i % 9, static_cast<ExtentId>(thread));
        accepted[static_cast<std::size_t>(thread)] += queue.push(launch_of(i, extents), false);
      }
      running.fetch_sub(1);
    });
  }
  const auto receive = [&] {
    queue.drain([&](const policy::Launch& launch, bool) {
      ASSERT_EQ(launch.touched.size(), 1 + launch.tick % 9);
      for (const ExtentId extent : launch.touched) ASSERT_EQ(extent, launch.touched.front());
      ++received[launch.touched.front()];
    });
  };
  while (running.load() > 0) receive();
  for (std::thread& thread : threads) thread.join();
  receive();
  EXPECT_EQ(received, accepted);
  EXPECT_EQ(queue.lost() + std::accumulate(accepted.begin(), accepted.end(), std::uint64_t{0}), kThreads * kEach);
}

}  // namespace
}  // namespace hmshim::interpose
