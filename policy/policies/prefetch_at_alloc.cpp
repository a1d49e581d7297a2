// Every allocation is brought to the device before its first use, and what is evicted later comes back by faults: the
// prefetch adaptor of RMM (rapidsai/rmm, prefetch_resource_adaptor), on top of on_demand's working LRU.
#include <memory>

#include "policy/policy.hpp"

namespace hmshim::policy {

std::unique_ptr<Policy> make_on_demand();

namespace {

class PrefetchAtAlloc final : public Policy {
 public:
  void before_launch(const Extents& extents, const Demand& demand, Actions& actions) override {
    on_demand_->before_launch(extents, demand, actions);
    for (const ExtentId id : demand.launch.touched) {
      if (extents.contains(id) && extents[id].place == Place::Nowhere) actions.push_back({ActionKind::Prefetch, id});
    }
  }

 private:
  std::unique_ptr<Policy> on_demand_ = make_on_demand();
};

}  // namespace

std::unique_ptr<Policy> make_prefetch_at_alloc() { return std::make_unique<PrefetchAtAlloc>(); }

}  // namespace hmshim::policy
