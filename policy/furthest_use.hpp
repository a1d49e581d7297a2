// Common to the baselines that evict what is used furthest in the future.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "policy/lookahead.hpp"

namespace hmshim::policy {

class FurthestUse : public Lookahead {
 private:
  void line_up(const Extents& extents) final {
    line_.clear();
    for (ExtentId id = extents.least_recently_touched(); id != kNoExtent; id = extents[id].newer)
      line_.emplace_back(foresight().next_use(id), id);
    std::make_heap(line_.begin(), line_.end());
  }
  ExtentId next_victim(const Extents&, Tick for_use_in) final {
    if (line_.empty() || line_.front().first <= for_use_in) return kNoExtent;
    std::pop_heap(line_.begin(), line_.end());
    const ExtentId victim = line_.back().second;
    line_.pop_back();
    return victim;
  }

  std::vector<std::pair<Tick, ExtentId>> line_;  // a heap: the furthest next use first
};

}  // namespace hmshim::policy
