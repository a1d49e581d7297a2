#include "uvm/device_budget.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/unit/uvm/fake_host.hpp"

namespace hmshim::uvm {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
// Of what a host has available one eighth is left alone: 80 GiB can back 70.
constexpr std::uint64_t kHost = 80 * kGiB;

DeviceBudget one_device(const FakeHost& host, DeviceShare share, BudgetLimits limits = {}) {
  return DeviceBudget(std::vector{share}, limits, host.memory());
}

TEST(DeviceBudget, total_is_device_plus_host_promise_and_free_is_what_is_left_of_it) {
  const FakeHost host(kHost);
  DeviceBudget budget = one_device(host, {40 * kGiB, {}}, {.host_bytes = 20 * kGiB});
  EXPECT_EQ(budget.memory_info(0).total_bytes, 60 * kGiB);
  EXPECT_EQ(budget.memory_info(0).free_bytes, 60 * kGiB);
  EXPECT_FALSE(budget.reserve(0, 45 * kGiB, Backing::Managed));
  EXPECT_FALSE(budget.reserve(0, 1 * kGiB, Backing::Device));
  EXPECT_EQ(budget.memory_info(0).free_bytes, 14 * kGiB);
  EXPECT_EQ(budget.memory_info(0).total_bytes, 60 * kGiB);
  EXPECT_EQ(budget.live_bytes(0).managed, 45 * kGiB);
  EXPECT_EQ(budget.live_bytes(0).device_backed, 1 * kGiB);
  budget.release(0, 45 * kGiB, Backing::Managed);
  budget.release(0, 1 * kGiB, Backing::Device);
  EXPECT_EQ(budget.memory_info(0).free_bytes, 60 * kGiB);
}

TEST(DeviceBudget, free_can_be_had_and_one_byte_more_cannot) {
  const FakeHost host(kHost);
  DeviceBudget budget = one_device(host, {40 * kGiB, 8 * kGiB});
  EXPECT_FALSE(budget.reserve(0, 3 * kGiB, Backing::Managed));
  const std::uint64_t free_bytes = budget.memory_info(0).free_bytes;
  EXPECT_EQ(budget.reserve(0, free_bytes + 1, Backing::Managed), Reason::HostMemory);
  EXPECT_FALSE(budget.reserve(0, free_bytes, Backing::Managed));
  EXPECT_EQ(budget.memory_info(0).free_bytes, 0u);
  EXPECT_EQ(budget.reserve(0, 1, Backing::Managed), Reason::HostMemory);
}

TEST(DeviceBudget, every_managed_byte_of_an_oversubscribed_device_may_need_the_host) {
  const FakeHost host(kHost);
  DeviceBudget budget = one_device(host, {40 * kGiB, {}});
  EXPECT_EQ(budget.memory_info(0).total_bytes, 70 * kGiB) << "what the host backs, not 40 + 70";
}

TEST(DeviceBudget, a_device_larger_than_the_host_promises_itself) {
  const FakeHost host(16 * kGiB);
  DeviceBudget budget = one_device(host, {40 * kGiB, {}});
  EXPECT_EQ(budget.memory_info(0).total_bytes, 40 * kGiB);
  EXPECT_FALSE(budget.reserve(0, 40 * kGiB, Backing::Managed));
  EXPECT_EQ(budget.reserve(0, 1, Backing::Managed), Reason::HostMemory);
}

TEST(DeviceBudget, a_budget_above_the_device_counts_as_the_device) {
  const FakeHost host(8 * kGiB);
  EXPECT_EQ(one_device(host, {40 * kGiB, 100 * kGiB}).memory_info(0).total_bytes, 40 * kGiB);
}

TEST(DeviceBudget, a_budget_of_zero_promises_host_memory_alone) {
  const FakeHost host(kHost);
  EXPECT_EQ(one_device(host, {40 * kGiB, 0}).memory_info(0).total_bytes, 70 * kGiB);
}

TEST(DeviceBudget, the_managed_limit_is_hard_and_does_not_bind_device_memory) {
  const FakeHost host(kHost);
  DeviceBudget budget = one_device(host, {40 * kGiB, {}}, {.managed_bytes = 4 * kGiB});
  EXPECT_EQ(budget.reserve(0, 4 * kGiB + 1, Backing::Managed), Reason::ManagedLimit);
  EXPECT_FALSE(budget.reserve(0, 4 * kGiB, Backing::Managed));
  EXPECT_EQ(budget.reserve(0, 1, Backing::Managed), Reason::ManagedLimit);
  EXPECT_EQ(budget.memory_info(0).free_bytes, 0u);
}

TEST(DeviceBudget, the_host_limit_is_named_when_it_is_in_the_way) {
  const FakeHost host(kHost);
  DeviceBudget budget = one_device(host, {40 * kGiB, 8 * kGiB}, {.host_bytes = 2 * kGiB});
  EXPECT_EQ(budget.reserve(0, 11 * kGiB, Backing::Managed), Reason::HostLimit);
  EXPECT_FALSE(budget.reserve(0, 10 * kGiB, Backing::Managed));
}

TEST(DeviceBudget, host_memory_that_others_take_shrinks_free_but_never_the_total) {
  FakeHost host(kHost);
  DeviceBudget budget = one_device(host, {40 * kGiB, 8 * kGiB});
  const MemoryInfo before = budget.memory_info(0);
  host.set_available(30 * kGiB);
  EXPECT_EQ(budget.memory_info(0).total_bytes, before.total_bytes);
  EXPECT_EQ(budget.memory_info(0).free_bytes, 20 * kGiB);  // 30 less the 10 left alone
  EXPECT_EQ(budget.reserve(0, 21 * kGiB, Backing::Managed), Reason::HostMemory);
  host.set_available(0);
  EXPECT_EQ(budget.memory_info(0).free_bytes, 8 * kGiB) << "the device itself is still there";
  host.set_available(500 * kGiB);
  EXPECT_EQ(budget.memory_info(0).free_bytes, before.total_bytes) << "never above the total";
}

TEST(DeviceBudget, host_pages_that_managed_memory_already_occupies_are_not_asked_for_twice) {
  FakeHost host(kHost);
  DeviceBudget budget = one_device(host, {40 * kGiB, 8 * kGiB});
  EXPECT_FALSE(budget.reserve(0, 50 * kGiB, Backing::Managed));
  host.set_available(30 * kGiB);  // all 50 have come to the host
  EXPECT_EQ(budget.memory_info(0).free_bytes, 20 * kGiB);
  EXPECT_FALSE(budget.reserve(0, 20 * kGiB, Backing::Managed));
}

TEST(DeviceBudget, several_devices_share_one_host_promise) {
  const FakeHost host(kHost);
  DeviceBudget budget(std::vector<DeviceShare>{{40 * kGiB, 10 * kGiB}, {40 * kGiB, 10 * kGiB}},
                      {.host_bytes = 6 * kGiB}, host.memory());
  EXPECT_EQ(budget.memory_info(0).total_bytes, 16 * kGiB);
  EXPECT_EQ(budget.memory_info(1).total_bytes, 16 * kGiB);
  EXPECT_FALSE(budget.reserve(0, 14 * kGiB, Backing::Managed));
  EXPECT_EQ(budget.memory_info(1).free_bytes, 12 * kGiB);
  EXPECT_EQ(budget.reserve(1, 13 * kGiB, Backing::Managed), Reason::HostLimit);
  EXPECT_FALSE(budget.reserve(1, 12 * kGiB, Backing::Managed));
  EXPECT_EQ(budget.memory_info(0).free_bytes, 0u);
  EXPECT_THROW(static_cast<void>(budget.memory_info(2)), std::out_of_range);
}

TEST(DeviceBudget, sizes_near_the_end_of_64_bits_do_not_wrap) {
  const FakeHost host(kHost);
  DeviceBudget budget = one_device(host, {40 * kGiB, {}});
  EXPECT_FALSE(budget.reserve(0, kGiB, Backing::Managed));
  for (const std::uint64_t bytes : {kUnlimited, kUnlimited - kGiB + 1, kUnlimited / 2}) {
    EXPECT_TRUE(budget.reserve(0, bytes, Backing::Managed)) << bytes;
  }
  budget.release(0, 5 * kGiB, Backing::Managed);  // more than was taken
  EXPECT_EQ(budget.live_bytes(0).managed, 0u);
  EXPECT_EQ(budget.memory_info(0).free_bytes, budget.memory_info(0).total_bytes);
}

TEST(DeviceBudget, racing_threads_never_get_more_than_the_total) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  const FakeHost host(800 * kMiB);
  DeviceBudget budget = one_device(host, {64 * kMiB, {}});
  const std::uint64_t total_bytes = budget.memory_info(0).total_bytes;
  ASSERT_EQ(total_bytes, 700 * kMiB);
  std::atomic<std::uint64_t> granted{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        if (budget.reserve(0, 2 * kMiB, Backing::Managed)) {
          ++refused;
        } else {
          granted += 2 * kMiB;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(granted, total_bytes) << "neither more nor less";
  EXPECT_EQ(refused, 800 - 350);
  EXPECT_EQ(budget.live_bytes(0).managed, total_bytes);
}

}  // namespace
}  // namespace hmshim::uvm
