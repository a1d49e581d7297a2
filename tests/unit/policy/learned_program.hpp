// A training loop in few lines, and a machine that runs it under a plan: for the tests of what learns and follows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "policy/event.hpp"
#include "policy/learned_plan.hpp"
#include "policy/pattern_recorder.hpp"
#include "policy/plan_follower.hpp"

namespace hmshim::policy {

// The iteration that the last so many launches are.
inline std::optional<Iteration> last_iteration(PatternRecorder& recorder, std::uint64_t launches) {
  recorder.end_iteration(launches);
  return recorder.last_iteration();
}

// `layers` weights of `blocks` blocks each that live for ever; each layer's activation is born forwards and freed
// backwards. Ids of activations are used again as the driver's table does: the lowest free one first.
class LayerProgram {
 public:
  LayerProgram(PatternRecorder& recorder, std::uint32_t layers, std::uint64_t blocks)
      : recorder_(recorder), layers_(layers), bytes_(blocks * kBlockBytes) {
    for (std::uint32_t layer = 0; layer < layers; ++layer) weights_.push_back(allocate());
  }

  bool is_backed = false;  // what it allocates has memory of the device
  [[nodiscard]] const std::vector<LiveExtent>& extents() const { return extents_; }
  [[nodiscard]] std::uint32_t launches() const { return 3 * layers_; }

  // Calls `launch` for every launch of one iteration.
  template <class OnLaunch>
  void iterate(OnLaunch&& launch) {
    std::vector<ExtentId> activations;
    for (std::uint32_t layer = 0; layer < layers_; ++layer) {
      activations.push_back(allocate());
      std::vector<ExtentId> touched{weights_[layer], activations[layer]};
      if (layer > 0) touched.push_back(activations[layer - 1]);
      emit(launch, 1 + layer, touched);
    }
    for (std::uint32_t layer = layers_; layer-- > 0;) {
      emit(launch, 1000, {weights_[layer], activations[layer]});
      release(activations[layer]);
    }
    for (const ExtentId weight : weights_) emit(launch, 2000, {weight});
  }

  ExtentId allocate() {
    ExtentId id = 0;
    while (id < extents_.size() && extents_[id].bytes != 0) ++id;
    if (id == extents_.size()) extents_.emplace_back();
    extents_[id] = {next_base_, bytes_, is_backed};  // addresses are never used again: a wrong one shows
    next_base_ += bytes_;
    recorder_.allocated(id, bytes_);
    return id;
  }
  void release(ExtentId id) {
    extents_[id] = {};
    recorder_.freed(id);
  }

 private:
  template <class OnLaunch>
  void emit(OnLaunch& on_launch, std::uint64_t signature, const std::vector<ExtentId>& touched) {
    const Launch launch{.tick = tick_++, .signature = signature, .time_ns = 0, .touched = touched};
    recorder_.launch(launch);
    on_launch(launch);
  }

  PatternRecorder& recorder_;
  std::uint32_t layers_;
  std::uint64_t bytes_;
  std::vector<ExtentId> weights_;
  std::vector<LiveExtent> extents_;
  std::uint64_t next_base_ = std::uint64_t{1} << 40;
  Tick tick_ = 0;
};

}  // namespace hmshim::policy
