// Follows a program through the plan of its iteration: which launch it has enqueued, which the device has finished, and
// hence what may move now and which launches may run.
//
// Two clocks. The program enqueues far ahead of the device: enqueue() matches what it does with the plan and binds the
// plan's extents to the program's. The device lags: finish() tells how far it is, and only that lets data move. Steps
// (learned_plan.hpp) are numbered from 0 over all plans of a device, so that a number means one moment for ever.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "policy/event.hpp"
#include "policy/learned_plan.hpp"
#include "policy/schedule_executor.hpp"

namespace hmshim::policy {

// A live extent of the program. `base` says where it is to whoever moves it; here it is only added to.
struct LiveExtent {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;  // 0: the id is not in use
  bool is_backed = false;   // had memory of the device when it came into being
};

struct Range {
  std::uint64_t base;
  std::uint64_t bytes;
};

struct WriteBack {
  Range range;
  std::optional<PieceIndex> piece;  // none: it is in no plan and in the way
};

struct Fetch {
  Range range;
  bool is_birth;  // has no contents yet: it is given memory, no byte moves
};

// `ranges` are sorted by base.
[[nodiscard]] bool covers(std::span<const Range> ranges, const Range& wanted) noexcept;

class PlanFollower {
 public:
  // The program is about to enqueue the plan's launch `position`, which makes step `first_step`. `extents` is indexed
  // by ExtentId.
  PlanFollower(std::shared_ptr<const LearnedPlan> plan, Tick first_step, std::span<const LiveExtent> extents,
               LaunchIndex position = 0);
  // After the launches before `position`, which are the same in the plan that the program has followed so far.
  PlanFollower(std::shared_ptr<const LearnedPlan> plan, Tick first_step, std::span<const LiveExtent> extents,
               LaunchIndex position, const PlanFollower& before);

  // ---- what the program enqueues

  enum class Match : std::uint8_t {
    Expected,
    Foreign,   // not in the plan, which goes on after it: a logged value, a copy of an input
    Diverged,  // the program does something else now
  };
  enum class Mismatch : std::uint8_t {
    None,
    Kernel,  // or its shape
    Stream,
    Count,   // of extents
    Size,    // of one of them
    Extent,  // another one
  };
  struct Enqueued {
    Match match;
    Tick step = 0;               // that the launch belongs to; what follows is about this launch
    bool is_settled = false;     // for a whole iteration data has been where the plan has it
    bool begins_step = false;    // the step before it is complete
    bool begins_stream = false;  // its stream's first of the step: must not run before opened() > step
  };
  // Where the launch is not the plan's launch `position`: what it does not do as expected.
  [[nodiscard]] static Mismatch mismatch(const LearnedPlan& plan, LaunchIndex position, const Launch& launch,
                                         std::span<const LiveExtent> extents);
  Enqueued enqueue(const Launch& launch, std::span<const LiveExtent> extents);
  // The same for a launch that is expected and neither begins a step nor, in its stream, takes part in one; where it is
  // any other, nothing has changed and the answer is false.
  bool enqueue_within_step(const Launch& launch, std::span<const LiveExtent> extents);
  // Nothing more will be enqueued: the end is after the step under way, or before it when it has not begun.
  void end();
  [[nodiscard]] Tick enqueued_end() const noexcept { return enqueued_end_; }  // after the last step that has begun
  [[nodiscard]] bool is_between_steps() const noexcept {
    return plan_->steps.first_launch[plan_->steps.step_of_launch[position_]] == position_;
  }
  [[nodiscard]] bool is_between_iterations() const noexcept { return position_ == 0; }
  [[nodiscard]] LaunchIndex position() const noexcept { return position_; }  // of the launch that is expected next
  [[nodiscard]] bool has_gone_round() const noexcept { return round_ > 0; }
  // Launches enqueued as expected, over all iterations.
  [[nodiscard]] std::uint64_t followed_launches() const noexcept { return followed_launches_; }
  // Streams that take part in a step, bit i for stream i.
  [[nodiscard]] std::uint8_t streams(Tick step) const noexcept { return plan_->steps.streams[index(step)]; }

  // ---- what the device does

  // The device has come to the first step, with these ranges resident (sorted, not overlapping). `evicts_rest`: those
  // that the plan does not know are in its way, and are written back first.
  void begin(std::span<const Range> on_device, bool evicts_rest, std::uint64_t now_ns);
  // Opens what can be opened. The other calls do so too; this one is for after enqueue() and end().
  void advance(std::uint64_t now_ns);
  [[nodiscard]] bool has_begun() const noexcept { return executor_.has_value(); }
  // Steps before `end` have ended. False when they should not even have begun: the plan is not what happens.
  [[nodiscard]] bool finish(Tick end, std::uint64_t now_ns);
  [[nodiscard]] Tick finished_end() const noexcept {
    return first_step_ + (executor_ ? executor_->tick() : first_tick_);
  }
  [[nodiscard]] bool is_over() const noexcept { return has_ended_ && has_begun() && finished_end() == enqueued_end_; }
  // Steps before this one may run. It never falls.
  [[nodiscard]] Tick opened() const noexcept { return first_step_ + opened_; }

  // Each is ended by its *_finished(). One fetch at a time, but several write-backs.
  [[nodiscard]] std::optional<Fetch> start_fetch(std::uint64_t now_ns);
  void fetch_finished(std::uint64_t now_ns);
  [[nodiscard]] std::optional<WriteBack> start_writeback(std::uint64_t now_ns);
  void writeback_finished(const WriteBack& writeback, std::uint64_t now_ns);

  [[nodiscard]] std::uint64_t used_bytes() const noexcept { return executor_ ? executor_->used_bytes() : 0; }
  [[nodiscard]] std::uint64_t emergencies() const noexcept { return executor_ ? executor_->emergencies() : 0; }
  // What of the plan's extents is on the device now, and what has not left yet, sorted.
  [[nodiscard]] std::vector<Range> on_device() const;
  [[nodiscard]] const LearnedPlan& plan() const noexcept { return *plan_; }

  // How long each launch took when the device last went through a whole iteration, once: measured at the ends of steps,
  // waits for data excluded. Empty when there is nothing new.
  [[nodiscard]] std::vector<std::uint64_t> take_measured_durations();

 private:
  // An extent of the plan in one round: from its birth (0 when it was born before the plan began) to the next one's.
  struct Life {
    Tick born;
    std::uint64_t base;
    bool is_backed = true;
  };
  static constexpr Tick kPromisedSteps = 8;  // hides how long it takes to hear of a step's end and to open the next
  static constexpr std::uint32_t kMostForeignLaunches = 64;
  // Share of the capacity that data outside of the plan may take before it displaces the plan's.
  static constexpr std::uint64_t kForeignPerCapacity = 16;

  [[nodiscard]] LaunchIndex index(Tick step) const noexcept {
    return static_cast<LaunchIndex>((step - first_step_) % plan_->steps.count());
  }
  [[nodiscard]] std::vector<Range> strangers(std::span<const Range> on_device) const;
  [[nodiscard]] const Life* life_of(PieceIndex piece, Tick tick) const;
  [[nodiscard]] std::optional<Range> range_of(PieceIndex piece, Tick tick) const;
  void pass(const Launch& launch, std::span<const LiveExtent> extents, Tick tick);
  void bind(LaunchIndex launch, const Launch& event, std::span<const LiveExtent> extents, Tick tick);
  [[nodiscard]] Match judge_foreign(const Launch& launch, std::span<const LiveExtent> extents);
  [[nodiscard]] bool continues_lives(const Launch& event, std::span<const LiveExtent> extents) const;
  [[nodiscard]] Tick openable_end() const;
  void skip_to_birth();
  [[nodiscard]] bool has_birth() const;
  [[nodiscard]] std::optional<Fetch> start_birth();
  void start_step();
  void measure(Tick first, Tick end, std::uint64_t now_ns);

  std::shared_ptr<const LearnedPlan> plan_;
  Tick first_tick_;  // of the iteration's steps, the one that the program begins with
  Tick first_step_;  // where tick 0 is: before all numbers, modulo 2^64, when the program began later

  LaunchIndex position_ = 0;  // the launch that is expected next
  Tick round_ = 0;
  Tick enqueued_end_;
  std::uint8_t streams_begun_ = 0;      // in the step under way
  std::uint32_t foreign_launches_ = 0;  // in a row, and the bytes that they touch beside the plan's
  std::uint64_t foreign_bytes_ = 0;
  std::vector<bool> is_planned_;  // by ExtentId: persists in the plan
  std::uint64_t followed_launches_ = 0;
  // A foreign launch has named data: that came by a fault, and what the driver sent away for it shows only when it is
  // missed, for which again something goes.
  bool is_disturbed_ = false;
  bool has_ended_ = false;
  std::vector<std::vector<Life>> lives_;  // by extent of the plan, oldest first

  // Ticks of the executor: steps since first_step_.
  std::optional<ScheduleExecutor> executor_;
  std::deque<Range> strangers_;  // resident and not in the plan, on their way to the host
  Tick opened_;
  TouchIndex birth_cursor_ = 0;  // of step opened_: touches before it need no memory any more
  bool is_giving_memory_ = false;
  std::array<std::uint64_t, kPromisedSteps + 1> given_bytes_{};  // to births of steps that have not begun, by tick

  std::uint64_t finished_ns_ = 0;
  std::vector<std::uint64_t> opened_ns_;  // by step, when it was last opened
  std::vector<std::uint64_t> measured_ns_;
  bool has_measured_ = false;
};

}  // namespace hmshim::policy
