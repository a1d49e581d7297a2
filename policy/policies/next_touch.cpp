// DeepUM (Jung, Kim, Lee, ASPLOS 2023, doi 10.1145/3575693.3575736): at each kernel, prefetch what the next 8 kernels
// will touch, and evict for it the blocks that came in or were touched longest ago and that the predicted kernels do
// not touch. DeepUM predicts by two tables, kernel to next kernel and kernel to blocks, filled by its driver's faults;
// on a program that repeats they hold the last iteration, which is what Foresight is. Stronger than the original: it
// never mispredicts a repeating kernel, knows extents instead of learning blocks fault by fault, and a launch waits for
// what is on its way instead of faulting on it. What DeepUM calls invalidation - blocks that PyTorch has freed are
// dropped without a copy - is HMSHIM_DISCARD.
#include <memory>

#include "policy/lookahead.hpp"

namespace hmshim::policy {
namespace {

class NextTouch final : public Lookahead {
 private:
  void line_up(const Extents& extents) override { next_ = extents.least_recently_touched(); }
  ExtentId next_victim(const Extents& extents, Tick) override {
    const ExtentId victim = next_;
    if (victim != kNoExtent) next_ = extents[victim].newer;
    return victim;
  }

  ExtentId next_ = kNoExtent;
};

}  // namespace

std::unique_ptr<Policy> make_next_touch() { return std::make_unique<NextTouch>(); }

}  // namespace hmshim::policy
