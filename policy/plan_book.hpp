// The plans of a program's phases - training, evaluation, two models that take turns - and which of them a launch
// belongs to.
//
// Where the program leaves one plan it often goes on with another: an evaluation is the first half of a training
// iteration. So a launch that the plan does not expect is looked for in two places: after the same beginning in another
// plan, which is then entered where it is, and at the beginning of any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "policy/event.hpp"
#include "policy/learned_plan.hpp"
#include "policy/plan_follower.hpp"

namespace hmshim::policy {

// The same calls, with data of the same sizes that persists in the same places.
[[nodiscard]] bool are_alike(const Iteration& a, const Iteration& b);

// The first launch that is not the same, and what is not.
struct Difference {
  LaunchIndex launch;
  PlanFollower::Mismatch what;
};
// Of two iterations that are not alike. Where one is only longer, its first launch beyond the other.
[[nodiscard]] Difference first_difference(const Iteration& a, const Iteration& b);

class PlanBook {
 public:
  static constexpr std::size_t kMostPlans = 16;
  // Of all plans together: about 100 bytes each at four extents a launch.
  static constexpr std::size_t kMostLaunches = 2 * IterationDetector::kMaxPeriodLaunches;

  struct Page {
    std::shared_ptr<const LearnedPlan> plan;
    std::uint32_t refinements = 0;     // by what was measured
    std::uint32_t short_flights = 0;   // in a row
    std::uint32_t starts_to_skip = 0;  // because of those
    std::uint64_t used = 0;            // when it was last: the least recently used makes room
    bool is_unproven = false;          // of another run, and the program has not gone round it yet
  };
  struct Entry {
    Page* page;
    LaunchIndex position;
  };

  // In the place of the plan of an alike iteration, if there is one.
  Page& keep(std::shared_ptr<const LearnedPlan> plan);
  // Null where no iteration is alike.
  [[nodiscard]] Page* find(const Iteration& iteration);

  // The plan that begins with the launch, which the program has not been in a plan before: the most recently used.
  [[nodiscard]] std::optional<Entry> enter(const Launch& launch, std::span<const LiveExtent> extents);
  // Where the program goes on with a launch that is not the next of the plan that it follows.
  [[nodiscard]] std::optional<Entry> branch(const PlanFollower& from, const Launch& launch,
                                            std::span<const LiveExtent> extents);

  void note_use(Page& page) noexcept { page.used = ++uses_; }
  // The program has left the plan after so many launches. Plans that it leaves soon, again and again, are tried ever
  // more rarely.
  void note_end(const LearnedPlan& plan, std::uint64_t followed_launches, std::uint64_t enough_launches);

  // Takes out what is unproven.
  std::vector<std::shared_ptr<const LearnedPlan>> drop_unproven();

  [[nodiscard]] std::span<const std::unique_ptr<Page>> pages() const noexcept { return pages_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  static constexpr std::uint32_t kMostBackOff = 10;  // as a power of two

  [[nodiscard]] bool may_start(Page& page) noexcept;
  void make_room();

  std::vector<std::unique_ptr<Page>> pages_;
  std::uint64_t uses_ = 0;
};

}  // namespace hmshim::policy
