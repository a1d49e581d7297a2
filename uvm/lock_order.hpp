// The order in which the library's mutexes may be taken: a thread that holds one may only take one of a higher rank. No
// driver call is made while any of them is held (side_migrator's mutex is none of them): the driver may block, and may
// call back into the guest.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace hmshim::uvm {

enum class LockRank : std::uint8_t { None, TensorPool, DeviceBudget, AllocationTable };

// Checked where a wrong order should end the process, that is in sanitizer builds; a user's training run is never
// killed for it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kLockOrderChecked = true;
#else
inline constexpr bool kLockOrderChecked = false;
#endif

inline thread_local LockRank highest_held_rank = LockRank::None;

inline void assert_lock_order(LockRank next) noexcept {
  if (next > highest_held_rank) return;
  std::fprintf(stderr, "hmshim: lock order violated: rank %d taken while rank %d is held\n", static_cast<int>(next),
               static_cast<int>(highest_held_rank));
  std::abort();
}

}  // namespace hmshim::uvm
