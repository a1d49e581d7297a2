// Evicts what is used furthest in the future (Belady, IBM Systems Journal 1966), and fetches 8 launches ahead: MSched's
// optimal replacement with early fetch (arXiv 2512.24637), for one program. It knows the future from the iteration
// before, so it is only as good as that where iterations are equal: a yardstick for replays.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "policy/lookahead.hpp"

namespace hmshim::policy {
namespace {

class Belady final : public Lookahead {
 private:
  void line_up(const Extents& extents) override {
    line_.clear();
    for (ExtentId id = extents.least_recently_touched(); id != kNoExtent; id = extents[id].newer)
      line_.emplace_back(foresight().next_use(id), id);
    std::make_heap(line_.begin(), line_.end());
  }
  ExtentId next_victim(const Extents&, Tick for_use_in) override {
    if (line_.empty() || line_.front().first <= for_use_in) return kNoExtent;
    std::pop_heap(line_.begin(), line_.end());
    const ExtentId victim = line_.back().second;
    line_.pop_back();
    return victim;
  }

  std::vector<std::pair<Tick, ExtentId>> line_;  // a heap: the furthest next use first
};

}  // namespace

std::unique_ptr<Policy> make_belady() { return std::make_unique<Belady>(); }

}  // namespace hmshim::policy
