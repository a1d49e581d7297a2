// Between the guest's threads and the engines: one engine per device, the queue to them, and the hand that carries
// their actions out.
//
// A launch whose extents are all believed resident is only queued: no lock, no decision to make. A launch that names an
// absent extent takes the lock, lets the engine catch up with the queue and decide, and carries the actions out before
// the launch goes to the driver. Queued launches are digested where the guest waits anyway (settle), or when the queue
// fills.
//
// With the policy `learned` a pilot per device (pilot.hpp) learns the iteration. While it flies every launch takes the
// lock, is matched with the plan, and gets its gate; where there is no plan, or the program leaves it, `on_demand`
// decides.
//
// The belief may be wrong in both directions when threads race; the driver's faults then move the data, which costs
// time, never data.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "interpose/event_queue.hpp"
#include "interpose/pilot.hpp"
#include "interpose/report.hpp"
#include "policy/engine.hpp"
#include "uvm/allocation_table.hpp"
#include "uvm/driver_api.hpp"
#include "uvm/migrator.hpp"

namespace hmshim::interpose {

// Who drops the contents of retired extents. Called without the host's lock.
class Discarder {
 public:
  virtual ~Discarder() = default;
  virtual void discard(std::span<const policy::ExtentId> extents) noexcept = 0;
};

class EngineHost {
 public:
  // Devices are ordinals below budgets_bytes.size(), which holds what managed extents may occupy on each. Throws
  // std::invalid_argument when there is no policy of that name.
  EngineHost(const uvm::DriverApi& driver, uvm::Migrator& migrator, Report& report, std::string_view policy,
             std::span<const std::uint64_t> budgets_bytes, bool can_discard = false);
  ~EngineHost();

  // What a run before has learned, before anything is allocated; what this one has, at its end; and why the former was
  // of no use: empty where it was.
  void foresee(std::span<const LearnedPattern> patterns);
  [[nodiscard]] std::vector<LearnedPattern> patterns() const;
  [[nodiscard]] std::string disproof() const;

  // After the allocation is in the table / before the guest is told of the free.
  void allocated(const uvm::Allocation& allocation);
  void freed(const uvm::Allocation& allocation);

  // Extents of pools (uvm::TensorObserver).
  void retired(const uvm::Allocation& allocation);
  void revived(const uvm::Allocation& allocation);
  void reshaped(std::span<const policy::ExtentId> before, std::span<const uvm::Allocation> after);
  // Prefetches an extent without contents in `stream`, before its owner may use it. While a plan is followed that waits
  // for its first use, when the plan has made room.
  void populate(policy::ExtentId extent, std::uint16_t device, CUstream stream);
  [[nodiscard]] bool is_resident(policy::ExtentId extent) const noexcept;
  // Without this nothing is discarded.
  void discard_by(Discarder& discarder) noexcept { discarder_ = &discarder; }

  // What managed extents may occupy from the next launch on.
  void set_budget(std::uint16_t device, std::uint64_t budget_bytes);

  // Before the driver gets the launch, copy or memset. `extents` are those it names.
  // `is_part`: see policy::Launch.
  void launch(std::uint64_t signature, std::span<const policy::ExtentId> extents, CUstream stream,
              bool is_part = false);
  void copy(std::span<const policy::ExtentId> extents, CUstream stream);

  // After a synchronisation of the guest: digests what is queued and writes the report, unless another thread is about
  // it. Contains its own errors: the real call has been made.
  void settle() noexcept;

  // Before the context ends: nothing may wait for it, and none of our threads may use it any more.
  void leave_context(std::uint64_t context) noexcept;

  // The program ends: no gate stays closed, what is queued is digested, and what ran since the last iteration becomes
  // the last row of the report.
  void end();
  // Totals of each device that was used, since the start, for the exit record.
  [[nodiscard]] std::vector<IterationRecord> totals();
  [[nodiscard]] std::vector<LifetimeRecord> lifetimes();

 private:
  class Hints;
  struct Device {
    std::unique_ptr<policy::Engine> engine;
    std::uint64_t budget_bytes;
    std::unique_ptr<Pilot> pilot;          // null with any policy but learned
    std::uint64_t most_retired_bytes = 0;  // that the plan leaves to freed memory
    PilotTotals flown_before;              // when the running iteration began
    std::uint64_t allocations = 0;
    std::uint64_t launches = 0;
    std::uint64_t copies = 0;
    std::uint64_t largest_working_set_bytes = 0;
    std::uint64_t first_ns = 0;  // of the launches that were timed
    std::uint64_t last_ns = 0;
  };

  [[nodiscard]] bool are_resident(std::span<const policy::ExtentId> extents) const noexcept;
  [[nodiscard]] std::uint64_t stamp(std::uint64_t signature) const noexcept;
  [[nodiscard]] std::uint8_t number_of(CUstream stream) noexcept;
  [[nodiscard]] policy::Launch foretold(policy::Launch launch) noexcept;
  void submit(const policy::Launch& launch, bool is_copy, CUstream stream);
  void carry_out(const policy::Actions& actions, std::span<const policy::ExtentId> needed, CUstream stream);
  [[nodiscard]] bool is_flying() const noexcept;
  void fly(const policy::Launch& launch, bool is_copy, CUstream stream);
  [[nodiscard]] bool fly_within_step(const policy::Launch& launch);
  void note_allocated(Device& device, const uvm::Allocation& allocation);
  [[nodiscard]] std::optional<std::uint16_t> only_device_of(const policy::Launch& launch) const noexcept;
  void demote_strangers(std::uint16_t ordinal);
  void resynchronise(std::uint16_t ordinal);
  void wake_planners();
  [[nodiscard]] policy::Actions take_unpopulated(std::span<const policy::ExtentId> touched);
  void digest_queue();
  void digest(const policy::Launch& launch, bool is_copy);
  // `clearance`: of a launch that flies by plan; null: the policy decides. `is_whole`: all that the launch names is the
  // device's.
  void feed(std::uint16_t ordinal, const policy::Launch& launch, bool is_copy,
            const Pilot::Clearance* clearance = nullptr, bool is_whole = true);
  void note_iteration(std::uint16_t ordinal, const policy::IterationStats& stats) noexcept;
  [[nodiscard]] Counters counters_of(const Device& device, const policy::IterationStats& stats,
                                     const PilotTotals& flown_before) const;

  [[nodiscard]] policy::Allocated event_of(const uvm::Allocation& allocation);

  const uvm::DriverApi& driver_;
  uvm::Migrator& migrator_;
  Report& report_;
  Discarder* discarder_ = nullptr;

  std::atomic<policy::Tick> tick_{0};
  std::atomic<std::uint64_t> boundary_signature_{0};  // of the launch that ended the last iteration; 0: none yet
  EventQueue queue_;
  const std::unique_ptr<Hints> hints_;
  bool looks_ahead_ = false;  // the policy
  // The guest's streams in order of appearance; null: free.
  std::array<std::atomic<CUstream>, policy::kMostStreams> streams_{};
  std::atomic<const char*> thread_with_stream_{nullptr};  // whose CU_STREAM_PER_THREAD has a number
  std::atomic<bool> wants_plan_{false};                   // of some pilot; set under the lock, obeyed without it

  std::mutex mutex_;  // guards what follows; no driver call is made under it
  std::vector<Device> devices_;
  std::uint64_t settled_ns_ = 0;   // when the guest last waited for the device
  std::uint16_t last_device_ = 0;  // of the last launch that named an extent: where a launch that names none is counted
  policy::Foreknowledge foreknowledge_;
  policy::Actions actions_;           // decided while digesting, not yet carried out
  std::vector<bool> is_unpopulated_;  // by ExtentId: discarded, and the guest's again
  std::size_t unpopulated_ = 0;
};

}  // namespace hmshim::interpose
