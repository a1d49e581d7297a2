// Carries a policy's actions out as driver calls, in the guest's own stream, just before the launch that caused them.
//
// Stream order is what makes this correct for now: a demote enqueued in the launching stream follows every earlier use
// there, and a use in another stream that still runs finds its pages by faulting; nothing is ever lost, only time. Its
// price is that the guest's thread makes the calls and that a prefetch to the host works synchronously in the driver.
// What a plan moves goes by threads of the library's own (migration_lane.hpp), and what a policy that looks ahead asks
// for goes beside the stream (side_migrator.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "policy/action.hpp"
#include "uvm/allocation_table.hpp"
#include "uvm/driver_api.hpp"
#include "uvm/side_migrator.hpp"

namespace hmshim::uvm {

// One migrate call holds the address space's lock for its whole range, and a writer that waits for it (an allocation,
// mmap, fork) holds up even the fault handler (uvm_va_space.h). 32 MiB are about 1 ms on PCIe 4.
inline constexpr std::uint64_t kMostBytesPerCall = std::uint64_t{32} << 20;

// Since the start. Bytes are those asked of the driver with success.
struct MigratorTotals {
  std::uint64_t demoted_bytes = 0;
  std::uint64_t prefetched_bytes = 0;
  std::uint64_t failed_calls = 0;
  std::uint64_t skipped_in_capture = 0;  // actions, not calls
};

// By whichever of the driver's two calls there is. `target` is a device or CU_DEVICE_CPU.
[[nodiscard]] CUresult prefetch(const DriverApi& api, std::uint64_t base, std::uint64_t bytes, CUdevice target,
                                CUstream stream) noexcept;

// All blocks of an extent, in calls of at most kMostBytesPerCall, up to the first that is refused: what refuses one
// refuses the next. The bytes that were asked for with success.
std::uint64_t move(const DriverApi& api, const Allocation& allocation, policy::ActionKind kind,
                   CUstream stream) noexcept;

class Migrator {
 public:
  Migrator(const DriverApi& api, const AllocationTable& table) : api_(api), table_(table) {}

  // Enqueues the actions in order. The context of `stream` is current; for the null stream of a *_ptsz entry pass
  // CU_STREAM_PER_THREAD. Errors are counted and go no further: an action is a wish. An extent freed meanwhile is left
  // out; should its address be in use again already, the wrong bytes move, which costs time and never data. While
  // `stream` captures nothing is called.
  void execute(std::span<const policy::Action> actions, CUstream stream) noexcept;

  [[nodiscard]] SideMigrator& beside() noexcept { return side_; }
  [[nodiscard]] MigratorTotals totals() const noexcept;

 private:
  const DriverApi& api_;
  const AllocationTable& table_;
  SideMigrator side_{api_, table_};
  std::atomic<std::uint64_t> demoted_bytes_{0};
  std::atomic<std::uint64_t> prefetched_bytes_{0};
  std::atomic<std::uint64_t> failed_calls_{0};
  std::atomic<std::uint64_t> skipped_in_capture_{0};
};

}  // namespace hmshim::uvm
