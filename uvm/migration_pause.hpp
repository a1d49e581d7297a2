// No migration is asked for while the process forks. Both take the lock of the address space, the fork for writing: one
// that has to wait for a migrate call holds up everybody behind it, the fault handler included (uvm_va_space.h).
//
// A courtesy, not a condition: neither side waits long for the other. Without a lock, for a fork would copy it in
// whatever state it is.
#pragma once

#include <atomic>
#include <cstdint>

#include "uvm/driver_api.hpp"

namespace hmshim::uvm {

class MigrationPause {
 public:
  // By a thread that is about to fork: returns when no call is under way. Forks may overlap.
  void begin(const DriverApi& api) noexcept;
  void end() noexcept { forks_.fetch_sub(1); }

  // Around a call that migrates.
  class Call {
   public:
    explicit Call(MigrationPause& pause) noexcept : pause_(pause) { pause_.enter(); }
    ~Call() { pause_.calls_.fetch_sub(1); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    MigrationPause& pause_;
  };

 private:
  void enter() noexcept;

  // Sequentially consistent: of a fork and a call that begin at once, one sees the other.
  std::atomic<std::uint32_t> forks_{0};
  std::atomic<std::uint32_t> calls_{0};
};

// Of the process, as its forks are.
extern constinit MigrationPause migration_pause;

}  // namespace hmshim::uvm
