// Carries actions out beside the guest's stream: they begin when the stream has come to where they were asked for, and
// the guest goes on meanwhile. For the baselines that fetch early; a plan has threads and lanes of its own.
//
// All is said in streams and events, nothing waits on the host. The driver hands calls on streams that are busy to its
// one deferred worker, which is slower than a call on an idle stream (hence the lanes), but a baseline keeps its order.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "policy/action.hpp"
#include "uvm/allocation_table.hpp"
#include "uvm/driver_api.hpp"

namespace hmshim::uvm {

class SideMigrator {
 public:
  SideMigrator(const DriverApi& api, const AllocationTable& table) : api_(api), table_(table) {}

  // Enqueues demotes and prefetches, each kind in order, demotes first, and what is `needed` before what is only early;
  // other actions are left out. Then makes `stream` wait for those of `needed` that are on their way. The context of
  // `stream` is current. Errors go no further: what has not come faults.
  void execute(std::span<const policy::Action> actions, std::span<const policy::ExtentId> needed,
               CUstream stream) noexcept;

 private:
  // Owned by all the extents that it stands for; a destroyed event lives on in the driver until it has happened.
  using Event = std::shared_ptr<CUevent_st>;
  [[nodiscard]] Event record(CUstream stream) noexcept;
  [[nodiscard]] bool open() noexcept;
  void enqueue(std::span<const policy::Action> actions, std::span<const policy::ExtentId> needed, CUstream stream);
  void fetch(std::span<const policy::Action> actions, CUevent after, CUstream stream);
  [[nodiscard]] bool move(const policy::Action& action, CUstream stream) const noexcept;
  void await(std::span<const policy::ExtentId> needed, CUstream stream) noexcept;

  const DriverApi& api_;
  const AllocationTable& table_;
  std::mutex mutex_;  // held while calls are enqueued: two threads must not mix theirs; guards what follows
  CUstream leaving_ = nullptr;
  CUstream coming_ = nullptr;
  CUstream urgent_ = nullptr;
  std::vector<Event> arrivals_;             // by ExtentId; null: here, or not asked for
  std::vector<policy::Action> now_, soon_;  // prefetches of one call
};

}  // namespace hmshim::uvm
