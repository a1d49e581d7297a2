// Finds the iteration of a training loop in the sequence of its launches, online and without any hint from the program.
//
// Four ideas, each old; the combination is this project's.
//  - Prefix hashes (Karp and Rabin 1987): two stretches of the history are compared in O(1), the common prefix or
//  suffix of
//    two places is found by bisection in O(log). A lag d is a period when the last d launches equal the d before them.
//  - Which lags to try: the distance to the last place where the same four launches stood in a row. A junction -
//  forward to
//    backward, optimizer to forward - occurs once per iteration even when all layers look alike, so its distance is the
//    iteration's length, not a layer's.
//  - An anchor: when a period is confirmed at a junction, that junction ends every iteration from then on. Boundaries
//  hence
//    keep their phase whatever is inserted between two of them (evaluation, logging, a longer sequence); the similarity
//    of successive iterations becomes the confidence, instead of the period being lost.
//  - An iteration returns to its data. Identical layers repeat the same launches on weights that were last touched a
//  whole
//    iteration ago, so a lag most of whose launches' data is staler than that is a layer, not an iteration (reuse
//    distance: Mattson et al. 1970, in launches instead of pages).
// A longer period replaces a shorter one (micro-steps and an optimizer step; layers and a whole step) if what it adds
// matters to memory: launches that the shorter one never makes, touching at least 1/64 of the bytes that it touches. So
// an optimizer counts, a logged scalar or an evaluation that runs the same forward pass does not.
//
// Limits, by design: layers that cannot be told apart (all their buffers allocated after the first launch) are taken
// for iterations until the second real one ends; an evaluation of kernels of its own, at most 64 steps apart, counts as
// part of the iteration once seen twice; an iteration in which no four launches in a row are unique is not found.
//
// Cost: O(1) per launch, plus O(log period) where a repetition breaks off and at boundaries. 8 MB of addresses, of
// which memory is taken as they are used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "policy/zeroed_array.hpp"

namespace hmshim::policy {

class IterationDetector {
 public:
  static constexpr std::uint64_t kMaxPeriodLaunches = (std::uint64_t{1} << 17) - 1;

  IterationDetector();

  // One launch. `signature` must be equal for launches that do the same in every iteration; `weight` is what the launch
  // matters, in any fixed unit (the engine gives the bytes it touches); `staleness_launches` is how long ago the data
  // it touches was last touched, or allocated: the most of its extents.
  void observe(std::uint64_t signature, std::uint64_t weight = 1, std::uint64_t staleness_launches = 0);

  [[nodiscard]] bool has_period() const noexcept { return current_.context != 0; }
  // Length of the iteration that others are compared with, the last that repeated; 0 without a period.
  [[nodiscard]] std::uint64_t period_launches() const noexcept { return current_.reference_launches; }
  // In [0, 1]; 0 without a period. 0.75 when two equal iterations have been seen and nothing else, towards 1 with every
  // equal one, less the less alike successive iterations are and the longer one lasts beyond its time.
  [[nodiscard]] double confidence() const noexcept;
  // Launches since the last boundary: 0 when the next launch begins an iteration.
  [[nodiscard]] std::uint64_t position() const noexcept { return observed_ - boundary_; }
  // The last launch observed was the last of an iteration. Also true where a period is first found or replaced: that
  // row holds everything since the boundary before, which for the first is the start of the program.
  [[nodiscard]] bool iteration_completed() const noexcept { return observed_ != 0 && boundary_ == observed_; }
  // Boundaries so far that ended an iteration of the period then known.
  [[nodiscard]] std::uint64_t completed_iterations() const noexcept { return completed_; }

 private:
  // Launches are numbered from 1; a stretch of the history is named by its last launch and its length.
  using Position = std::uint64_t;

  static constexpr std::uint64_t kHistoryLaunches = 2 * (kMaxPeriodLaunches + 1);
  static constexpr std::size_t kContextLaunches = 4;

  // Where the last kContextLaunches launches in a row were last seen, and their distances then.
  struct Recurrence {
    std::uint64_t distance = 0;           // to their last occurrence; 0 when there is none
    std::uint64_t previous_distance = 0;  // between that one and the one before; 0 when there is none
  };

  // A period, known by the context in which its iterations end.
  struct Anchor {
    std::uint64_t context = 0;   // 0: none
    Position reference_end = 0;  // the last iteration that was equal to the reference before it
    std::uint64_t reference_launches = 0;
    std::uint64_t reference_weight = 0;
    double similarity = 0;  // of successive iterations, exponentially averaged
    int iterations = 0;     // seen alike, capped: evidence
    bool was_equal = true;  // the last iteration, to the reference
  };

  // The set-associative memory of contexts: bounded, no rehashing, the stalest entry of a full set is forgotten.
  class ContextMemory {
   public:
    ContextMemory() : sets_(kSets) {}
    Recurrence record(std::uint64_t context, Position now) noexcept;

   private:
    static constexpr std::size_t kWays = 4;
    static constexpr std::size_t kSets = kHistoryLaunches / kWays;
    struct Entry {
      std::uint64_t context = 0;
      std::uint32_t last = 0;  // position modulo 2^32: older than the history long before it could alias
      std::uint32_t distance = 0;
    };
    struct alignas(64) Set {
      std::array<Entry, kWays> ways;
    };
    ZeroedArray<Set> sets_;
  };

  void append(std::uint64_t signature, std::uint64_t weight, std::uint64_t staleness_launches);
  void count_foreign(const Recurrence& recurrence);
  void follow_repetition(const Recurrence& recurrence);
  void look_for_period(const Recurrence& recurrence);
  [[nodiscard]] bool returns_to_its_data(std::uint64_t launches, std::uint64_t max_staleness) const noexcept;
  [[nodiscard]] bool may_replace(std::uint64_t launches) const noexcept;
  void adopt(std::uint64_t launches, double similarity);
  void end_iteration();
  [[nodiscard]] bool returned_to_dormant() const noexcept;
  [[nodiscard]] bool is_overdue() const noexcept { return position() > 2 * current_.reference_launches; }

  // The stretches of `launches` ending at `a` and at `b` = a - lag are equal; `shift` is base^lag.
  [[nodiscard]] bool equal(Position a, Position b, std::uint64_t launches, std::uint64_t shift) const noexcept;
  [[nodiscard]] std::uint64_t common_suffix(Position a, Position b, std::uint64_t limit) const noexcept;
  // How alike two iterations are: the share of the longer one that is their common beginning and common end.
  [[nodiscard]] double similarity(Position end_a, std::uint64_t launches_a, Position end_b,
                                  std::uint64_t launches_b) const noexcept;
  [[nodiscard]] bool in_history(Position end, std::uint64_t launches) const noexcept {
    return end >= launches && observed_ - (end - launches) < kHistoryLaunches;
  }

  Position observed_ = 0;
  Position boundary_ = 0;
  std::uint64_t completed_ = 0;

  ZeroedArray<std::uint64_t> prefix_;     // ring: hash of everything up to a position
  ZeroedArray<std::uint64_t> foreign_;    // ring: weight of all foreign launches up to a position
  ZeroedArray<std::uint32_t> staleness_;  // ring, in launches
  std::uint64_t base_power_ = 1;          // base^observed_
  std::array<std::uint64_t, kContextLaunches> recent_signatures_{};
  std::array<std::uint64_t, kContextLaunches> recent_weights_{};
  std::uint64_t context_ = 0;
  ContextMemory contexts_;

  // The repetition under way: the last run_ launches equal those lag_ before.
  std::uint64_t lag_ = 0;
  std::uint64_t lag_shift_ = 1;
  std::uint64_t run_ = 0;
  std::uint64_t required_run_ = 0;  // to be taken for a period

  std::uint64_t foreign_contexts_ = 0;  // in a row
  std::uint64_t weight_ = 0;            // since the boundary
  std::uint64_t patience_ = 0;          // launches since the last look for a period that is only similar

  Anchor current_;
  Anchor dormant_;  // given up for another phase; comes back when its iteration does
};

}  // namespace hmshim::policy
