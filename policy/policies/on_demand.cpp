// Demand paging with a working LRU: data comes in by far faults, and room is made before a launch instead of during it.
//
// This is what a program gets from plain unified memory, and from nvshare (github.com/grgalex/nvshare; thesis NTUA
// 2021, doi 10.26240/heal.ntua.21988), which turns device allocations into managed ones and leaves every decision about
// one process to the driver - with one thing repaired. The driver's eviction list is ordered by the last migration, not
// by the last access (nvidia-uvm uvm_pmm_gpu.c: a chunk goes to the tail when it is migrated into), so it evicts
// weights that every launch uses because they came in first. Whoever sees the launches knows the order of touches: the
// least recently touched extents go to the host before the launch, and the driver finds their chunks free to reuse.
#include <algorithm>
#include <memory>

#include "policy/policy.hpp"

namespace hmshim::policy {
namespace {

class OnDemand final : public Policy {
 public:
  void before_launch(const Extents& extents, const Demand& demand, Actions& actions) override {
    const std::uint64_t wanted_bytes = extents.resident_bytes() + demand.incoming_bytes;
    if (wanted_bytes <= demand.budget_bytes) return;
    std::uint64_t excess_bytes = wanted_bytes - demand.budget_bytes;
    // The launch's own extents are the newest: reaching one of them means that nothing else is left to demote.
    for (ExtentId victim = extents.least_recently_touched();
         excess_bytes > 0 && victim != kNoExtent && extents[victim].touched_at != demand.ordinal;
         victim = extents[victim].newer) {
      actions.push_back({ActionKind::Demote, victim});
      excess_bytes -= std::min(excess_bytes, extents[victim].bytes);
    }
  }
};

}  // namespace

std::unique_ptr<Policy> make_on_demand() { return std::make_unique<OnDemand>(); }

}  // namespace hmshim::policy
