#include "policy/plan_book.hpp"

#include <gtest/gtest.h>

#include "tests/unit/policy/learned_program.hpp"

namespace hmshim::policy {
namespace {

constexpr std::uint64_t kCapacity = 8 * kBlockBytes;
constexpr CostModel kCost{.h2d_bytes_per_s = 20e9, .d2h_bytes_per_s = 20e9, .clean_copies = false};

// Twelve weights of one block; what a phase does with them is a list of signatures, launch i touching weight i mod 12.
class Phases {
 public:
  using Phase = std::vector<std::uint64_t>;

  std::shared_ptr<const LearnedPlan> plan(const Phase& phase) const {
    PatternRecorder recorder;
    for (ExtentId id = 0; id < kWeights; ++id) recorder.allocated(id, kBlockBytes);
    for (int round = 0; round < 2; ++round) {
      for (LaunchIndex k = 0; k < phase.size(); ++k) {
        const std::vector<ExtentId> touched{k % kWeights};
        recorder.launch(launch(phase, k, touched));
      }
    }
    auto iteration = std::make_shared<const Iteration>(*last_iteration(recorder, phase.size()));
    return make_learned_plan(iteration, std::vector<std::uint64_t>(phase.size(), 200'000), kCost, kCapacity);
  }

  static Launch launch(const Phase& phase, LaunchIndex k, const std::vector<ExtentId>& touched) {
    return {.tick = 0, .signature = phase[k], .time_ns = 0, .touched = touched};
  }
  std::optional<PlanBook::Entry> enter(PlanBook& book, const Phase& phase, LaunchIndex k) const {
    const std::vector<ExtentId> touched{k % kWeights};
    return book.enter(launch(phase, k, touched), extents_);
  }
  std::optional<PlanBook::Entry> branch(PlanBook& book, const PlanFollower& from, const Phase& phase,
                                        LaunchIndex k) const {
    const std::vector<ExtentId> touched{k % kWeights};
    return book.branch(from, launch(phase, k, touched), extents_);
  }
  // A follower of the plan after so many launches of its phase.
  PlanFollower follower(std::shared_ptr<const LearnedPlan> plan, const Phase& phase, LaunchIndex launches) const {
    PlanFollower follower(std::move(plan), 0, extents_);
    for (LaunchIndex k = 0; k < launches; ++k) {
      const std::vector<ExtentId> touched{static_cast<ExtentId>(k % phase.size() % kWeights)};
      EXPECT_EQ(follower.enqueue(launch(phase, static_cast<LaunchIndex>(k % phase.size()), touched), extents_).match,
                PlanFollower::Match::Expected);
    }
    return follower;
  }
  [[nodiscard]] const std::vector<LiveExtent>& extents() const { return extents_; }

  static Phase numbered(std::uint64_t from, std::size_t count) {
    Phase phase(count);
    for (std::size_t i = 0; i < count; ++i) phase[i] = from + i;
    return phase;
  }

 private:
  static constexpr ExtentId kWeights = 12;
  std::vector<LiveExtent> extents_ = [] {
    std::vector<LiveExtent> extents;
    for (ExtentId id = 0; id < kWeights; ++id) extents.push_back({(id + 1) * kBlockBytes, kBlockBytes});
    return extents;
  }();
};

TEST(PlanBook, enters_the_plan_that_begins_with_the_launch) {
  const Phases phases;
  const auto training = Phases::numbered(1, 24), other = Phases::numbered(101, 24);
  PlanBook book;
  EXPECT_FALSE(phases.enter(book, training, 0));
  book.keep(phases.plan(training));
  book.keep(phases.plan(other));
  EXPECT_EQ(book.pages().size(), 2U);
  EXPECT_EQ(phases.enter(book, training, 0)->page->plan->iteration->launches[0].signature, 1U);
  EXPECT_EQ(phases.enter(book, other, 0)->page->plan->iteration->launches[0].signature, 101U);
  EXPECT_FALSE(phases.enter(book, training, 1));
}

TEST(PlanBook, a_plan_takes_the_place_of_one_for_the_same_iteration) {
  const Phases phases;
  const auto training = Phases::numbered(1, 24);
  PlanBook book;
  book.keep(phases.plan(training));
  const auto again = phases.plan(training);
  book.keep(again);
  ASSERT_EQ(book.pages().size(), 1U);
  EXPECT_EQ(book.find(*again->iteration)->plan, again);
}

// Evaluation is the first half of training.
class TwoPhases : public testing::Test {
 protected:
  Phases phases;
  Phases::Phase training = Phases::numbered(1, 24), evaluation = Phases::numbered(1, 12);
  std::shared_ptr<const LearnedPlan> train = phases.plan(training), evaluate = phases.plan(evaluation);
  PlanBook book;
  void SetUp() override {
    book.keep(evaluate);
    book.keep(train);
  }
};

TEST_F(TwoPhases, a_second_evaluation_is_told_from_training_where_it_begins_again) {
  const auto follower = phases.follower(train, training, 12);
  const auto entry = phases.branch(book, follower, evaluation, 0);
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->page->plan, evaluate);
  EXPECT_EQ(entry->position, 0U);
}

TEST_F(TwoPhases, training_is_gone_on_with_after_a_forward_pass_that_was_taken_for_an_evaluation) {
  for (const LaunchIndex rounds : {1U, 2U}) {
    const auto follower = phases.follower(evaluate, evaluation, 12 * rounds);
    const auto entry = phases.branch(book, follower, training, 12);
    ASSERT_TRUE(entry);
    EXPECT_EQ(entry->page->plan, train);
    EXPECT_EQ(entry->position, 12U);
  }
}

TEST_F(TwoPhases, an_iteration_that_is_cut_short_begins_again) {
  const auto follower = phases.follower(train, training, 18);
  const auto entry = phases.branch(book, follower, training, 0);
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->page->plan, train);
  EXPECT_EQ(entry->position, 0U);
}

TEST_F(TwoPhases, a_launch_that_no_plan_knows_there_is_no_branch) {
  const auto follower = phases.follower(train, training, 6);
  EXPECT_FALSE(phases.branch(book, follower, training, 12));
  EXPECT_FALSE(phases.branch(book, follower, Phases::numbered(500, 12), 0));
}

TEST_F(TwoPhases, a_plan_that_is_soon_left_again_is_tried_ever_more_rarely) {
  int entries = 0;
  for (int start = 0; start < 100; ++start) {
    if (const auto entry = phases.enter(book, Phases::numbered(1, 12), 0); entry && entry->page->plan == train) {
      ++entries;
      book.note_end(*train, 3, 24);
    }
  }
  EXPECT_GT(entries, 3);
  EXPECT_LT(entries, 10);
  book.note_end(*train, 24, 24);
  EXPECT_EQ(phases.enter(book, training, 0)->page->plan, train);
}

TEST(PlanBook, keeps_the_most_recently_used_of_more_plans_than_it_has_room_for) {
  const Phases phases;
  PlanBook book;
  for (std::uint64_t i = 0; i < PlanBook::kMostPlans + 3; ++i) {
    book.keep(phases.plan(Phases::numbered(1 + 100 * i, 12)));
    if (const auto first = phases.enter(book, Phases::numbered(1, 12), 0)) book.note_use(*first->page);
  }
  EXPECT_EQ(book.pages().size(), PlanBook::kMostPlans);
  EXPECT_TRUE(phases.enter(book, Phases::numbered(1, 12), 0));
  EXPECT_FALSE(phases.enter(book, Phases::numbered(101, 12), 0));
}

TEST(PlanBook, a_plan_of_a_hundred_thousand_launches_takes_less_than_20_mb) {
  constexpr LaunchIndex kLaunches = 100'000;
  constexpr PatternExtent kExtents = 1000;
  auto iteration = std::make_shared<Iteration>();
  for (LaunchIndex k = 0; k < kLaunches; ++k) {
    iteration->launches.push_back({k, 4 * k, 0});
    for (PatternExtent i = 0; i < 4; ++i) iteration->operands.push_back((k / 50 + i) % kExtents);
  }
  for (PatternExtent i = 0; i < kExtents; ++i) iteration->extents.push_back({4 * kBlockBytes, kPersistent, 0, i});
  PlanBook book;
  book.keep(make_learned_plan(iteration, std::vector<std::uint64_t>(kLaunches, 10'000), kCost, std::uint64_t{4} << 30));
  EXPECT_LT(book.memory_bytes(), 20'000'000U) << book.memory_bytes();
  EXPECT_GT(book.memory_bytes(), 2'000'000U);
}

}  // namespace
}  // namespace hmshim::policy
