// One direction of migration: a thread's own streams, on which it moves a range and waits until it is there.
//
// The streams are idle whenever a call is made, so that the driver works in the caller instead of handing the call to
// its one deferred worker; two of them take turns, so that the next call begins while the copies of the last one still
// run. They have the highest priority, not to be faster but to share no hardware queue with a stream of the guest that
// waits for them.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "uvm/driver_api.hpp"

namespace hmshim::uvm {

class MigrationLane {
 public:
  explicit MigrationLane(const DriverApi& api) : api_(api) {}

  // Makes the streams in the calling thread's context, and lets its calls pass while other threads capture.
  [[nodiscard]] CUresult open() noexcept;
  // `target` is a device or CU_DEVICE_CPU. Returns when all bytes have arrived, or with the first error after what had
  // been begun has ended. The range need not be live any more: the driver refuses it, or moves what is there now.
  [[nodiscard]] CUresult move(std::uint64_t base, std::uint64_t bytes, CUdevice target) noexcept;

 private:
  struct Turn {
    CUstream stream = nullptr;
    CUevent arrived = nullptr;
    bool is_under_way = false;
  };
  [[nodiscard]] CUresult await(Turn& turn) const noexcept;

  const DriverApi& api_;
  std::array<Turn, 2> turns_;
};

}  // namespace hmshim::uvm
