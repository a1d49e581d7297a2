// Small patterns for the planner's tests.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/access_pattern.hpp"
#include "policy/vocabulary.hpp"

namespace hmshim::policy {

// A fixed sequence of pseudo-random numbers (Knuth's MMIX constants): the same patterns on every machine.
class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t bound) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return (state_ >> 33) % bound;
  }

 private:
  std::uint64_t state_;
};

// A training step of a stack of layers: activations are written forwards and read backwards, weights are read both ways
// and written by an update at the end. `blocks` is the size of an activation and of a weight.
inline AccessPattern layer_stack(std::uint32_t layers, std::uint64_t blocks, std::uint64_t launch_ns) {
  AccessPattern pattern;
  const std::uint64_t bytes = blocks * kBlockBytes;
  std::vector<PatternExtent> weights, activations;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    weights.push_back(pattern.add_extent(bytes, kPersistent));
    activations.push_back(pattern.add_extent(bytes, layer));
  }
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    std::vector<ExtentTouch> touches{{weights[layer], false}, {activations[layer], true}};
    if (layer > 0) touches.push_back({activations[layer - 1], false});
    pattern.add_launch(launch_ns, touches);
  }
  for (std::uint32_t layer = layers; layer-- > 0;) {
    pattern.add_launch(2 * launch_ns, std::vector<ExtentTouch>{{weights[layer], false}, {activations[layer], false}});
  }
  for (const PatternExtent weight : weights) pattern.add_launch(launch_ns, std::vector<ExtentTouch>{{weight, true}});
  return pattern;
}

// Random touches, lives and sizes, all valid; lives may reach round the end of the iteration.
inline AccessPattern random_pattern(std::uint64_t seed, LaunchIndex launches, PatternExtent extents) {
  Sequence sequence(seed);
  std::vector<std::vector<ExtentTouch>> touches(launches);
  AccessPattern pattern;
  for (PatternExtent extent = 0; extent < extents; ++extent) {
    const auto first = static_cast<LaunchIndex>(sequence.below(launches));
    const bool is_persistent = sequence.below(3) == 0;
    pattern.add_extent(1 + sequence.below(4 * kBlockBytes), is_persistent ? kPersistent : first);
    touches[first].push_back({extent, sequence.below(4) != 0});
    for (std::uint64_t more = sequence.below(4); more > 0; --more) {
      auto& launch = touches[sequence.below(launches)];
      if (launch.empty() || launch.back().extent != extent) launch.push_back({extent, sequence.below(3) == 0});
    }
  }
  for (const auto& launch : touches) pattern.add_launch(1000 * sequence.below(500), launch);
  return pattern;
}

}  // namespace hmshim::policy
