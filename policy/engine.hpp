// The decision maker of one device: events in, actions out. Pure and single-threaded; its owner holds the lock.
// It keeps the books (who is where, who was touched when, what moved) and asks a Policy, found by name, what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "policy/action.hpp"
#include "policy/event.hpp"
#include "policy/iteration_detector.hpp"
#include "policy/lifetimes.hpp"

namespace hmshim::policy {

struct EngineConfig {
  std::string_view policy;         // a name of policies.def
  std::uint64_t budget_bytes = 0;  // device bytes that managed extents may occupy
  bool can_discard = false;        // retired extents may be dropped without a copy
};

// Bytes by cause since the engine began; monotonic. The engine's own belief, exact for what it ordered and an
// estimate (whole extents) for what the driver moves on demand.
struct MigrationTotals {
  std::uint64_t h2d_demand_bytes = 0;
  std::uint64_t h2d_prefetch_bytes = 0;
  std::uint64_t d2h_demote_bytes = 0;
  std::uint64_t discarded_bytes = 0;
  std::uint64_t demotions = 0;
  std::uint64_t budget_excursions = 0;  // launches whose own extents exceed the budget
};

// What one iteration did. Rows tile launches and copies: each begins where the one before ended.
struct IterationStats {
  std::uint64_t ordinal = 0;  // from 0; see IterationDetector::iteration_completed for what row 0 holds
  std::uint64_t launches = 0;
  std::uint64_t copies = 0;
  std::uint64_t working_set_bytes = 0;  // touched in this iteration: the most that was alive at once
  std::uint64_t footprint_bytes = 0;    // the most that was allocated at any launch of it
  MigrationTotals migrated;             // in this iteration
  std::uint64_t begin_ns = 0;           // end of the one before; for row 0 its first launch
  std::uint64_t end_ns = 0;             // its last launch
  double confidence = 0;                // of the detector at its end
};

class Engine {
 public:
  // Throws std::invalid_argument naming the policies there are when config.policy is unknown.
  explicit Engine(const EngineConfig& config);
  ~Engine();

  void allocated(const Allocated& event);
  void freed(const Freed& event);

  // Extents of a pool. A retired one has been freed by the guest and keeps its memory; where that is on the device it
  // stays resident, is the first to go when the budget is short (by a Discard, at no bytes, or where that cannot be had
  // by a Demote once no live extent is left to go), and costs nothing to use again.
  void retired(const Freed& event);
  void revived(const Allocated& event);
  // Retired extents have become others, of the same memory.
  void reshaped(std::span<const ExtentId> before, std::span<const Allocated> after);
  // A revived extent without contents is prefetched before its tenant uses it; the least recently touched make room.
  void populate(ExtentId extent, Actions& actions);

  // Appends to `actions` what must be done before the launch runs. After it every touched extent counts as resident.
  // Extents that were never allocated here, or are already freed, are ignored. Allocates nothing once the vectors are
  // warm.
  void launch(const Launch& event, Actions& actions);
  // A planned copy target: like launch(), but absent extents are brought in by a Prefetch action instead of a fault
  // (copy engines fault page by page: uvm_gpu_non_replayable_faults.c).
  void copy(const Launch& event, Actions& actions);

  // A launch or copy whose data a plan brings: the books are kept, the policy is not asked. What it touches counts as
  // resident. Of what is retired so many bytes may stay on the device; the oldest beyond that are discarded where that
  // can be had: the plan counts on their memory.
  void follow(const Launch& event, bool is_copy, std::uint64_t most_retired_bytes, Actions& actions);
  // What the plan moved, for the totals.
  void count_planned(std::uint64_t h2d_bytes, std::uint64_t d2h_bytes) noexcept;
  // Corrects the belief after a plan.
  void place(ExtentId extent, bool is_on_device) noexcept;

  // See Policy::looks_ahead().
  [[nodiscard]] bool looks_ahead() const noexcept;
  [[nodiscard]] bool is_resident(ExtentId extent) const noexcept;
  // Launches and copies ago that the extent was last touched, or allocated.
  [[nodiscard]] std::uint64_t staleness(ExtentId extent) const noexcept;
  [[nodiscard]] std::uint64_t resident_bytes() const noexcept;  // of live and retired extents
  [[nodiscard]] std::uint64_t footprint_bytes() const noexcept;
  [[nodiscard]] const MigrationTotals& totals() const noexcept;
  [[nodiscard]] const IterationDetector& iterations() const noexcept;
  // What kind of data the extents are, those of the past included.
  [[nodiscard]] LifetimeTallies lifetimes() const noexcept;
  void set_budget(std::uint64_t budget_bytes) noexcept;  // takes effect at the next launch

  // The iteration that the last launch completed, once. An owner that does not ask at every launch sees only the
  // latest.
  [[nodiscard]] std::optional<IterationStats> take_completed_iteration() noexcept;
  // The one under way: what the last row of a report is made of.
  [[nodiscard]] IterationStats current_iteration() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hmshim::policy
