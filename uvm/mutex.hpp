// A mutex that knows its rank (lock_order.hpp) and that clang's thread safety analysis understands.
#pragma once

#include <mutex>

#include "uvm/lock_order.hpp"
#include "uvm/thread_annotations.hpp"

namespace hmshim::uvm {

template <bool kChecked>
class HMSHIM_CAPABILITY("mutex") BasicMutex {
 public:
  explicit BasicMutex(LockRank rank) : rank_(rank) {}

  void lock() HMSHIM_ACQUIRE() {
    if constexpr (kChecked) assert_lock_order(rank_);
    mutex_.lock();
    if constexpr (kChecked) {
      rank_below_ = highest_held_rank;
      highest_held_rank = rank_;
    }
  }
  void unlock() HMSHIM_RELEASE() {
    if constexpr (kChecked) highest_held_rank = rank_below_;
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
  LockRank rank_;
  LockRank rank_below_ = LockRank::None;  // what the holder held before; only the holder touches it
};

using Mutex = BasicMutex<kLockOrderChecked>;

template <bool kChecked>
class HMSHIM_SCOPED_CAPABILITY BasicMutexLock {
 public:
  explicit BasicMutexLock(BasicMutex<kChecked>& mutex) HMSHIM_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~BasicMutexLock() HMSHIM_RELEASE() { mutex_.unlock(); }
  BasicMutexLock(const BasicMutexLock&) = delete;
  BasicMutexLock& operator=(const BasicMutexLock&) = delete;

 private:
  BasicMutex<kChecked>& mutex_;
};

using MutexLock = BasicMutexLock<kLockOrderChecked>;

}  // namespace hmshim::uvm
