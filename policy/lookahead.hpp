// Common to the baselines that fetch early: at each launch, what the next kDegree launches touch is brought to the
// device, and victims leave for what the kDegree launches after those will need. They differ in the choice of victims.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/foresight.hpp"
#include "policy/policy.hpp"

namespace hmshim::policy {

class Lookahead : public Policy {
 public:
  // DeepUM's prefetch degree (Jung, Kim, Lee, ASPLOS 2023), also in G10's model of it.
  static constexpr std::uint32_t kDegree = 8;

  [[nodiscard]] bool looks_ahead() const noexcept final { return true; }
  void before_launch(const Extents& extents, const Demand& demand, Actions& actions) final;

 protected:
  [[nodiscard]] const Foresight& foresight() const noexcept { return foresight_; }

  // What a plan of the policy's own wants at the launch just observed: extents that leave whatever is needed, and
  // extents that come beside those of the window.
  virtual void consult_plan(const Extents&, const Demand&, std::vector<ExtentId>& /*leaving*/,
                            std::vector<ExtentId>& /*coming*/) {}
  // Away by that plan: the window does not fetch it.
  [[nodiscard]] virtual bool is_held_back(ExtentId) const { return false; }
  // For how many launches ahead room is kept.
  [[nodiscard]] virtual std::uint32_t launches_of_room() const { return 2 * kDegree; }
  // Called before the first victim of a launch is asked for.
  virtual void line_up(const Extents& extents) = 0;
  // The next victim, for something that is used so many launches ahead; kNoExtent when none should go. The caller
  // passes over what the launch and its window touch.
  [[nodiscard]] virtual ExtentId next_victim(const Extents& extents, Tick for_use_in) = 0;

 private:
  // The books of one launch, with what has been decided so far.
  struct Room {
    std::uint64_t resident_bytes;
    std::uint64_t live_bytes;  // of it what only a copy can remove
    ExtentId retired;          // the next that gives its memory
    bool is_lined_up = false;
  };
  void look(const Extents& extents, const Demand& demand);
  // Nothing evicts it at this launch. True if that was so already.
  bool keep(ExtentId id, const Demand& demand);
  [[nodiscard]] bool is_kept(ExtentId id, const Demand& demand) const noexcept {
    return id < kept_at_.size() && kept_at_[id] == demand.ordinal;
  }
  // Demotes until so much more than what is alive fits the budget. False if there is no victim left for it.
  bool reserve(const Extents& extents, const Demand& demand, std::uint64_t bytes, Tick for_use_in, Room& room,
               Actions& actions);
  // Counts what comes in; freed memory goes for it.
  static void take(const Extents& extents, const Demand& demand, std::uint64_t bytes, Room& room, Actions& actions);

  Foresight foresight_;
  std::vector<ExtentId> near_;          // what kDegree launches touch that is not on the device, in order
  std::uint64_t far_bytes_ = 0;         // the same of the kDegree launches after those
  std::vector<std::uint64_t> kept_at_;  // by ExtentId: ordinal of the last launch whose window has it
  std::vector<ExtentId> window_;
  std::vector<ExtentId> leaving_;
  std::vector<ExtentId> coming_;
};

}  // namespace hmshim::policy
