#include "uvm/lock_order.hpp"

#include <gtest/gtest.h>

#include <string>

#include "uvm/mutex.hpp"

namespace hmshim::uvm {
namespace {

using CheckedMutex = BasicMutex<true>;
using CheckedLock = BasicMutexLock<true>;

TEST(LockOrder, ascending_ranks_may_be_nested_and_taken_again) {
  CheckedMutex low(LockRank::DeviceBudget);
  CheckedMutex high(LockRank::AllocationTable);
  for (int round = 0; round < 2; ++round) {
    const CheckedLock first(low);
    const CheckedLock second(high);
    EXPECT_EQ(highest_held_rank, LockRank::AllocationTable);
  }
  EXPECT_EQ(highest_held_rank, LockRank::None);
}

TEST(LockOrderDeathTest, a_lower_rank_under_a_higher_one_ends_the_process_with_both_ranks) {
  CheckedMutex low(LockRank::DeviceBudget);
  CheckedMutex high(LockRank::AllocationTable);
  EXPECT_DEATH(
      {
        const CheckedLock first(high);
        const CheckedLock second(low);
      },
      "lock order violated: rank " + std::to_string(static_cast<int>(LockRank::DeviceBudget)) + " taken while rank " +
          std::to_string(static_cast<int>(LockRank::AllocationTable)) + " is held");
}

TEST(LockOrderDeathTest, two_locks_of_one_rank_end_the_process) {
  CheckedMutex one(LockRank::DeviceBudget);
  CheckedMutex two(LockRank::DeviceBudget);
  EXPECT_DEATH(
      {
        const CheckedLock first(one);
        const CheckedLock second(two);
      },
      "lock order violated");
}

}  // namespace
}  // namespace hmshim::uvm
