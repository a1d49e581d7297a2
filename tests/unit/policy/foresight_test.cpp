// What is known of the next launches once an iteration has come round, and that ids may change from round to round.
#include "policy/foresight.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace hmshim::policy {
namespace {

// Eight launches. Extent 0 persists and is touched by launches 0 and 6; a temporary is born in launch 2, used again by
// launch 5 and then freed. Its id is 10 + round.
class Foreseen : public testing::Test {
 protected:
  Foreseen() { extents_.add(0, kBlockBytes, 0); }

  void run_until(std::uint64_t rounds, std::uint32_t position) {
    while (ordinal_ < rounds * 8 + position + 1) step();
  }
  [[nodiscard]] std::vector<ExtentId> upcoming(std::uint32_t first, std::uint32_t last) const {
    std::vector<ExtentId> touched;
    foresight_.upcoming(first, last, touched);
    return touched;
  }
  [[nodiscard]] ExtentId temporary() const { return static_cast<ExtentId>(10 + (ordinal_ - 1) / 8); }

  Foresight foresight_;

 private:
  void step() {
    const std::uint64_t position = ordinal_ % 8;
    const auto round_temporary = static_cast<ExtentId>(10 + ordinal_ / 8);
    if (position == 2) extents_.add(round_temporary, 3 * kBlockBytes, ordinal_);
    if (position == 6) extents_.remove(round_temporary);
    std::vector<ExtentId> touched;
    if (position == 0 || position == 6) touched.push_back(0);
    if (position == 2 || position == 5) touched.push_back(round_temporary);
    ++ordinal_;
    const Launch launch{.tick = ordinal_, .signature = 100 + position, .time_ns = 0, .touched = touched};
    for (const ExtentId id : touched) extents_.touch(id, ordinal_);
    detector_.observe(launch.signature, 1, 8);
    foresight_.observe(extents_, {launch, ordinal_, 0, 0, false, false, detector_});
  }

  Extents extents_;
  IterationDetector detector_;
  std::uint64_t ordinal_ = 0;
};

TEST_F(Foreseen, nothing_is_known_before_an_iteration_has_come_round) {
  run_until(1, 3);
  EXPECT_TRUE(upcoming(1, 8).empty());
  EXPECT_EQ(foresight_.next_use(0), Foresight::kNever);
  EXPECT_EQ(foresight_.growth_bytes(8), 0U);
}

TEST_F(Foreseen, a_temporary_is_known_by_its_place_whatever_its_id) {
  run_until(5, 3);
  EXPECT_EQ(upcoming(1, 1), std::vector<ExtentId>{});
  EXPECT_EQ(upcoming(2, 2), std::vector<ExtentId>{temporary()});
  EXPECT_EQ(foresight_.next_use(temporary()), 2U);
  run_until(5, 5);
  EXPECT_EQ(foresight_.next_use(temporary()), Foresight::kNever);
}

TEST_F(Foreseen, what_persists_is_used_again_after_the_end_of_the_round) {
  run_until(5, 3);
  EXPECT_EQ(foresight_.next_use(0), 3U);
  run_until(5, 6);
  EXPECT_EQ(foresight_.next_use(0), 2U);
  EXPECT_EQ(upcoming(1, 8), (std::vector<ExtentId>{0, 0}));  // launches 0 and 6; the next temporary is not born yet
}

TEST_F(Foreseen, growth_counts_births_up_to_the_most_that_is_alive) {
  run_until(5, 0);
  EXPECT_EQ(foresight_.growth_bytes(1), 0U);
  EXPECT_EQ(foresight_.growth_bytes(2), 3 * kBlockBytes);
  EXPECT_EQ(foresight_.growth_bytes(8), 3 * kBlockBytes);
}

}  // namespace
}  // namespace hmshim::policy
