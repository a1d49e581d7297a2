// The follower against a machine that runs what the program enqueues: in stream order, never before the gate opens.
#include "policy/plan_follower.hpp"

#include <gtest/gtest.h>

#include "tests/unit/policy/learned_program.hpp"
#include "tests/unit/policy/planner_patterns.hpp"

namespace hmshim::policy {
namespace {

constexpr std::uint32_t kLayers = 8;
constexpr std::uint64_t kBlocks = 4;
constexpr std::uint64_t kNever = ~std::uint64_t{0};
constexpr std::uint64_t kBytes = kBlocks * kBlockBytes;
constexpr std::uint64_t kCapacity = 9 * kBytes;  // of 16 extents at the turn of the iteration
constexpr CostModel kCost{.h2d_bytes_per_s = 20e9, .d2h_bytes_per_s = 20e9, .clean_copies = false};

std::shared_ptr<const LearnedPlan> plan_of(PatternRecorder& recorder, std::uint32_t launches, std::uint64_t launch_ns) {
  auto iteration = last_iteration(recorder, launches);
  if (!iteration) return nullptr;
  return make_learned_plan(std::make_shared<const Iteration>(std::move(*iteration)),
                           std::vector<std::uint64_t>(launches, launch_ns), kCost, kCapacity);
}

// One stream, two link directions. Steps run when their gate is open; their launches' data must be there then.
class Machine {
 public:
  Machine(PlanFollower& follower, std::uint64_t launch_ns) : follower_(follower), launch_ns_(launch_ns) {}

  void enqueue(Tick step, bool begins_step, std::vector<Range> touched) {
    if (begins_step) steps_.push_back({step, {}, 0});
    steps_.back().launches += 1;
    for (const Range& range : touched) steps_.back().touched.push_back(range);
  }
  void put(const Range& range) { set(range, true); }

  // Until nothing more can happen. `is_complete`: the last step enqueued may end, too.
  void run(bool is_complete) {
    for (;;) {
      // As the threads do: whoever is idle asks.
      if (!fetch_ && fetch_end_ns_ == kNever) {
        if ((fetch_ = follower_.start_fetch(now_ns_))) {
          (fetch_->is_birth ? given_bytes : fetched_bytes) += fetch_->range.bytes;
          set(fetch_->range, true);
          fetch_end_ns_ =
              now_ns_ + (fetch_->is_birth ? 1'000 : kCost.transfer_ns(Direction::ToDevice, fetch_->range.bytes));
        }
      }
      if (writeback_end_ns_ == kNever) {
        if ((writeback_ = follower_.start_writeback(now_ns_)))
          writeback_end_ns_ = now_ns_ + kCost.transfer_ns(Direction::ToHost, writeback_->range.bytes);
      }
      if (step_end_ns_ == kNever && !steps_.empty() && (steps_.size() > 1 || is_complete) &&
          follower_.opened() > steps_.front().step) {
        begin_step();
      }
      const std::uint64_t next_ns = std::min({step_end_ns_, fetch_end_ns_, writeback_end_ns_});
      if (next_ns == kNever) return;
      now_ns_ = next_ns;
      if (step_end_ns_ == now_ns_) {
        step_end_ns_ = kNever;
        const Tick end = steps_.front().step + 1;
        steps_.pop_front();
        ASSERT_TRUE(follower_.finish(end, now_ns_));
        check_memory();
      } else if (fetch_end_ns_ == now_ns_) {
        fetch_end_ns_ = kNever;
        fetch_.reset();
        follower_.fetch_finished(now_ns_);
      } else {
        writeback_end_ns_ = kNever;
        set(writeback_->range, false);
        follower_.writeback_finished(*writeback_, now_ns_);
        written_back_bytes += writeback_->range.bytes;
      }
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  [[nodiscard]] bool is_idle() const { return steps_.empty(); }
  [[nodiscard]] std::uint64_t now_ns() const { return now_ns_; }
  std::uint64_t fetched_bytes = 0;
  std::uint64_t given_bytes = 0;  // to births
  std::uint64_t written_back_bytes = 0;
  std::uint64_t missing_blocks = 0;  // touched while away
  std::uint64_t most_used_bytes = 0;

 private:
  struct Step {
    Tick step;
    std::vector<Range> touched;
    int launches;
  };
  void set(const Range& range, bool is_there) {
    for (std::uint64_t block = range.base; block < range.base + range.bytes; block += kBlockBytes) {
      is_there ? static_cast<void>(device_.insert(block)) : static_cast<void>(device_.erase(block));
    }
  }
  void begin_step() {
    const Step& step = steps_.front();
    for (const Range& range : step.touched) {
      for (std::uint64_t block = range.base; block < range.base + range.bytes; block += kBlockBytes) {
        if (device_.insert(block).second) ++missing_blocks;
      }
    }
    step_end_ns_ = now_ns_ + launch_ns_ * static_cast<std::uint64_t>(step.launches);
  }
  void check_memory() {
    most_used_bytes = std::max(most_used_bytes, follower_.used_bytes());
    ASSERT_LE(follower_.used_bytes(), kCapacity);
  }

  PlanFollower& follower_;
  std::uint64_t launch_ns_;
  std::uint64_t now_ns_ = 0;
  std::deque<Step> steps_;
  std::set<std::uint64_t> device_;
  std::optional<Fetch> fetch_;
  std::optional<WriteBack> writeback_;
  std::uint64_t step_end_ns_ = kNever, fetch_end_ns_ = kNever, writeback_end_ns_ = kNever;
};

struct Scene {
  explicit Scene(std::uint64_t the_launch_ns) : launch_ns(the_launch_ns) {
    program.iterate([](const Launch&) {});
    program.iterate([](const Launch&) {});
    plan = plan_of(recorder, program.launches(), launch_ns);
  }
  void begin() {
    follower.emplace(plan, 0, program.extents());
    machine.emplace(*follower, launch_ns);
    // What is on the device: as many weights as fit.
    std::vector<Range> resident;
    for (ExtentId id = 0; id < kLayers; ++id) resident.push_back({program.extents()[id].base, kBytes});
    for (const Range& range : resident) machine->put(range);
    follower->begin(resident, false, 0);
  }
  PlanFollower::Match enqueue(const Launch& launch) {
    const auto enqueued = follower->enqueue(launch, program.extents());
    if (enqueued.match != PlanFollower::Match::Expected) return enqueued.match;
    std::vector<Range> touched;
    for (const ExtentId id : launch.touched) touched.push_back({program.extents()[id].base, kBytes});
    machine->enqueue(enqueued.step, enqueued.begins_step, touched);
    return enqueued.match;
  }

  PatternRecorder recorder;
  std::uint64_t launch_ns;
  LayerProgram program{recorder, kLayers, kBlocks};
  std::shared_ptr<const LearnedPlan> plan;
  std::optional<PlanFollower> follower;
  std::optional<Machine> machine;
};

TEST(PlanFollower, a_steady_program_never_misses_data) {
  for (const std::uint64_t launch_ns : {20'000U, 200'000U, 2'000'000U}) {
    SCOPED_TRACE(launch_ns);
    Scene run(launch_ns);
    ASSERT_TRUE(run.plan);
    run.begin();
    for (int round = 0; round < 6; ++round) {
      run.program.iterate([&](const Launch& launch) { ASSERT_EQ(run.enqueue(launch), PlanFollower::Match::Expected); });
      run.machine->run(false);
      if (HasFatalFailure()) return;
    }
    run.follower->end();
    run.follower->advance(run.machine->now_ns());
    run.machine->run(true);
    EXPECT_TRUE(run.machine->is_idle());
    EXPECT_TRUE(run.follower->is_over());
    EXPECT_EQ(run.machine->missing_blocks, 0U);
    if (run.plan->plan.cost.emergencies == 0) {
      EXPECT_EQ(run.follower->emergencies(), 0U);
    }
    EXPECT_GT(run.machine->fetched_bytes, 0U);
  }
}

// An evaluation is the first half of a training iteration; the program then goes on with the second half.
TEST(PlanFollower, a_plan_can_be_entered_after_a_beginning_that_it_shares_with_another) {
  for (const std::uint64_t launch_ns : {20'000U, 200'000U}) {
    SCOPED_TRACE(launch_ns);
    Scene run(launch_ns);
    run.begin();
    for (LaunchIndex position = 0; position < run.program.launches(); ++position) {
      SCOPED_TRACE(position);
      Tick step = run.follower->enqueued_end();
      LaunchIndex at = 0;
      run.program.iterate([&](const Launch& launch) {
        if (at++ == position) {
          step = run.follower->enqueued_end();
          run.follower->end();
          run.follower->advance(run.machine->now_ns());
          run.machine->run(true);
          ASSERT_TRUE(run.follower->is_over());
          const auto resident = run.follower->on_device();
          const std::uint64_t now_ns = run.machine->now_ns();
          const PlanFollower before = std::move(*run.follower);
          run.follower.emplace(run.plan, step, run.program.extents(), position, before);
          run.follower->begin(resident, true, now_ns);
        }
        ASSERT_EQ(run.enqueue(launch), PlanFollower::Match::Expected);
      });
      run.machine->run(false);
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(run.machine->missing_blocks, 0U);
  }
}

TEST(PlanFollower, what_another_plan_has_left_on_the_device_is_written_back_before_it_is_in_the_way) {
  Scene run(200'000);
  run.follower.emplace(run.plan, 0, run.program.extents());
  run.machine.emplace(*run.follower, run.launch_ns);
  std::vector<Range> resident;
  for (std::uint64_t i = 0; i < kCapacity / kBytes; ++i) resident.push_back({1 + i * kBytes, kBytes});
  run.follower->begin(resident, true, 0);
  EXPECT_EQ(run.follower->used_bytes(), kCapacity);
  for (int round = 0; round < 2; ++round) {
    run.program.iterate([&](const Launch& launch) { ASSERT_EQ(run.enqueue(launch), PlanFollower::Match::Expected); });
    run.machine->run(false);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(run.machine->written_back_bytes, kCapacity);
  EXPECT_EQ(run.machine->missing_blocks, 0U);
}

TEST(PlanFollower, gives_memory_to_births_that_have_none) {
  for (const bool is_backed : {false, true}) {
    Scene run(200'000);
    run.program.is_backed = is_backed;
    run.begin();
    for (int round = 0; round < 3; ++round) {
      run.program.iterate([&](const Launch& launch) {
        const auto enqueued = run.follower->enqueue(launch, run.program.extents());
        std::vector<Range> touched;
        for (const ExtentId id : launch.touched) touched.push_back({run.program.extents()[id].base, kBytes});
        run.machine->enqueue(enqueued.step, enqueued.begins_step, touched);
      });
      run.machine->run(false);
    }
    run.follower->end();
    run.machine->run(true);
    EXPECT_EQ(run.machine->given_bytes, is_backed ? 0 : 3 * kLayers * kBytes);
  }
}

TEST(PlanFollower, measures_how_long_launches_take) {
  Scene run(200'000);
  run.plan = make_learned_plan(run.plan->iteration, std::vector<std::uint64_t>(run.program.launches(), 150'000), kCost,
                               kCapacity);
  run.begin();
  EXPECT_TRUE(run.follower->take_measured_durations().empty());
  for (int round = 0; round < 4; ++round) {
    run.program.iterate([&](const Launch& launch) { run.enqueue(launch); });
    run.machine->run(false);
  }
  const auto durations_ns = run.follower->take_measured_durations();
  ASSERT_EQ(durations_ns.size(), run.program.launches());
  for (const std::uint64_t duration_ns : durations_ns) EXPECT_NEAR(static_cast<double>(duration_ns), 200'000, 2'000);
  EXPECT_TRUE(run.follower->take_measured_durations().empty());
}

// What was enqueued before the program turned away still gets its data, and every gate opens.
TEST(PlanFollower, a_program_that_turns_away_at_any_launch_runs_to_its_end) {
  for (std::uint32_t turn = 0; turn < 3 * kLayers; ++turn) {
    SCOPED_TRACE(turn);
    Scene run(20'000);
    run.begin();
    for (int round = 0; round < 2; ++round) {
      std::uint32_t at = 0;
      run.program.iterate([&](const Launch& launch) {
        if (round == 1 && at++ >= turn) return;
        ASSERT_EQ(run.enqueue(launch), PlanFollower::Match::Expected);
      });
      run.machine->run(false);
    }
    run.follower->end();
    run.follower->advance(run.machine->now_ns());
    run.machine->run(true);
    EXPECT_TRUE(run.machine->is_idle());
    EXPECT_TRUE(run.follower->is_over());
    EXPECT_EQ(run.machine->missing_blocks, 0U);
  }
}

TEST(PlanFollower, foreign_launches_are_waited_out_and_too_many_are_a_divergence) {
  Scene run(20'000);
  run.begin();
  int foreign = 0;
  bool has_diverged = false;
  run.program.iterate([&](const Launch& launch) {
    Launch other = launch;
    other.signature = 77;
    other.touched = launch.touched.first(1);  // the weight
    EXPECT_EQ(run.enqueue(other), PlanFollower::Match::Foreign);
    ++foreign;
    EXPECT_EQ(run.enqueue(launch), PlanFollower::Match::Expected);
  });
  EXPECT_EQ(foreign, 3 * kLayers);
  for (int i = 0; i < 1000 && !has_diverged; ++i) {
    has_diverged =
        run.enqueue({.tick = 0, .signature = 77, .time_ns = 0, .touched = {}}) == PlanFollower::Match::Diverged;
  }
  EXPECT_TRUE(has_diverged);
}

TEST(PlanFollower, little_foreign_data_is_let_pass_and_much_is_a_divergence) {
  Scene run(20'000);
  run.begin();
  const ExtentId stranger = run.program.allocate();  // a ninth of the capacity
  const std::vector<ExtentId> planned{0}, strange{stranger};
  EXPECT_EQ(run.enqueue({.tick = 0, .signature = 77, .time_ns = 0, .touched = planned}), PlanFollower::Match::Foreign);
  EXPECT_EQ(run.enqueue({.tick = 0, .signature = 77, .time_ns = 0, .touched = strange}), PlanFollower::Match::Diverged);
}

TEST(PlanFollower, random_launches_among_the_expected_ones_change_nothing_about_the_data) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Sequence sequence(seed);
    Scene run(20'000 * (1 + sequence.below(20)));
    run.begin();
    bool has_diverged = false;
    for (int round = 0; round < 4; ++round) {
      run.program.iterate([&](const Launch& launch) {
        if (has_diverged) return;
        if (sequence.below(8) == 0) {
          const std::vector<ExtentId> some{static_cast<ExtentId>(sequence.below(kLayers))};
          has_diverged |=
              run.enqueue({.tick = 0, .signature = 5, .time_ns = 0, .touched = some}) == PlanFollower::Match::Diverged;
        }
        if (sequence.below(200) == 0) return;  // it leaves one out
        has_diverged |= run.enqueue(launch) == PlanFollower::Match::Diverged;
      });
      run.machine->run(false);
    }
    run.follower->end();
    run.follower->advance(run.machine->now_ns());
    run.machine->run(true);
    EXPECT_TRUE(run.machine->is_idle());
    EXPECT_EQ(run.machine->missing_blocks, 0U);
  }
}

TEST(PlanFollower, begins_only_with_the_first_launch_and_the_extents_that_it_knows) {
  Scene run(20'000);
  int launches = 0;
  const auto mismatch = [&](const Launch& launch) {
    return PlanFollower::mismatch(*run.plan, 0, launch, run.program.extents());
  };
  run.program.iterate(
      [&](const Launch& launch) { EXPECT_EQ(mismatch(launch) == PlanFollower::Mismatch::None, launches++ == 0); });
  Launch first{.tick = 0, .signature = 1, .time_ns = 0, .touched = {}};
  EXPECT_EQ(mismatch(first), PlanFollower::Mismatch::Count);
  const std::vector<ExtentId> other{1, 0};
  first.touched = other;
  EXPECT_EQ(mismatch(first), PlanFollower::Mismatch::Extent);
  first.stream = 1;
  EXPECT_EQ(mismatch(first), PlanFollower::Mismatch::Stream);
  first.signature = 2;
  EXPECT_EQ(mismatch(first), PlanFollower::Mismatch::Kernel);
}

}  // namespace
}  // namespace hmshim::policy
