#include "policy/engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace hmshim::policy {
namespace {

constexpr std::uint64_t kBlock = kBlockBytes;

TEST(Engine, names_the_policies_there_are_when_asked_for_another) {
  try {
    const Engine engine({.policy = "psychic"});
    FAIL() << "an unknown policy was accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("psychic"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("on_demand"), std::string::npos);
  }
}

TEST(Engine, a_first_touch_moves_no_bytes) {
  Engine engine({.policy = "on_demand", .budget_bytes = 8 * kBlock});
  engine.allocated({0, 4 * kBlock});
  EXPECT_FALSE(engine.is_resident(0));
  EXPECT_EQ(engine.footprint_bytes(), 4 * kBlock);
  Actions actions;
  const std::vector<ExtentId> touched{0};
  engine.launch({1, 1, 0, touched}, actions);
  EXPECT_TRUE(engine.is_resident(0));
  EXPECT_EQ(engine.totals().h2d_demand_bytes, 0U);
}

TEST(Engine, ignores_extents_that_it_does_not_know) {
  Engine engine({.policy = "on_demand", .budget_bytes = kBlock});
  engine.allocated({3, kBlock});
  engine.freed({3});
  engine.freed({77});
  Actions actions;
  const std::vector<ExtentId> touched{3, 77, kNoExtent};
  engine.launch({1, 1, 0, touched}, actions);
  EXPECT_TRUE(actions.empty());
  EXPECT_EQ(engine.resident_bytes(), 0U);
  EXPECT_EQ(engine.totals().budget_excursions, 0U);
}

TEST(Engine, counts_an_extent_named_twice_once) {
  Engine engine({.policy = "on_demand", .budget_bytes = kBlock});
  engine.allocated({0, kBlock});
  Actions actions;
  const std::vector<ExtentId> touched{0, 0};
  engine.launch({1, 1, 0, touched}, actions);
  EXPECT_EQ(engine.resident_bytes(), kBlock);
  EXPECT_EQ(engine.totals().budget_excursions, 0U);
}

// The same rules written for clarity alone: a list of residents, searched from the front.
class ReferenceModel {
 public:
  explicit ReferenceModel(std::uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  void allocated(ExtentId id, std::uint64_t bytes) { bytes_[id] = bytes; }
  void freed(ExtentId id) {
    bytes_.erase(id);
    on_host_.erase(id);
    residents_.remove(id);
  }
  void set_budget(std::uint64_t bytes) { budget_bytes_ = bytes; }

  std::vector<std::pair<ActionKind, ExtentId>> access(const std::vector<ExtentId>& touched, bool is_copy) {
    std::vector<std::pair<ActionKind, ExtentId>> actions;
    std::uint64_t own = 0;
    std::vector<ExtentId> absent;
    for (const ExtentId id : touched) {
      own += bytes_.at(id);
      if (is_resident(id)) {
        residents_.remove(id);
        residents_.push_back(id);
      } else {
        absent.push_back(id);
      }
    }
    std::uint64_t incoming = 0;
    for (const ExtentId id : absent) incoming += bytes_.at(id);
    while (resident_bytes() + incoming > budget_bytes_) {
      const auto victim = std::find_if(residents_.begin(), residents_.end(), [&](ExtentId id) {
        return std::find(touched.begin(), touched.end(), id) == touched.end();
      });
      if (victim == residents_.end()) break;
      actions.emplace_back(ActionKind::Demote, *victim);
      totals.d2h_demote_bytes += bytes_.at(*victim);
      ++totals.demotions;
      on_host_[*victim] = true;
      residents_.erase(victim);
    }
    for (const ExtentId id : absent) {
      if (is_copy) actions.emplace_back(ActionKind::Prefetch, id);
      if (on_host_[id]) (is_copy ? totals.h2d_prefetch_bytes : totals.h2d_demand_bytes) += bytes_.at(id);
      residents_.push_back(id);
    }
    if (own > budget_bytes_) ++totals.budget_excursions;
    return actions;
  }
  [[nodiscard]] bool is_resident(ExtentId id) const {
    return std::find(residents_.begin(), residents_.end(), id) != residents_.end();
  }
  [[nodiscard]] std::uint64_t resident_bytes() const {
    std::uint64_t sum = 0;
    for (const ExtentId id : residents_) sum += bytes_.at(id);
    return sum;
  }
  [[nodiscard]] std::uint64_t footprint_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [id, bytes] : bytes_) sum += bytes;
    return sum;
  }
  MigrationTotals totals;

 private:
  std::uint64_t budget_bytes_;
  std::map<ExtentId, std::uint64_t> bytes_;
  std::map<ExtentId, bool> on_host_;
  std::list<ExtentId> residents_;  // least recently touched first
};

TEST(Engine, agrees_with_the_reference_model_on_random_programs) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::uint64_t budget = (1 + random() % 40) * kBlock;
    std::uint64_t current_budget = budget;
    Engine engine({.policy = "on_demand", .budget_bytes = budget});
    ReferenceModel model(budget);
    std::vector<ExtentId> live;
    std::vector<ExtentId> unused;
    for (ExtentId id = 0; id < 40; ++id) unused.push_back(id);
    std::map<ExtentId, std::uint64_t> sizes;

    for (Tick tick = 1; tick <= 1500; ++tick) {
      const std::uint64_t what = random() % 100;
      if ((what < 15 && !unused.empty()) || live.empty()) {
        const std::size_t i = random() % unused.size();
        const ExtentId id = unused[i];
        unused.erase(unused.begin() + static_cast<std::ptrdiff_t>(i));
        sizes[id] = (1 + random() % 6) * kBlock;
        random();
        engine.allocated({id, sizes[id]});
        model.allocated(id, sizes[id]);
        live.push_back(id);
      } else if (what < 27) {
        const std::size_t i = random() % live.size();
        engine.freed({live[i]});
        model.freed(live[i]);
        unused.push_back(live[i]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      } else if (what < 28) {
        current_budget = (1 + random() % 40) * kBlock;
        engine.set_budget(current_budget);
        model.set_budget(current_budget);
      } else {
        std::shuffle(live.begin(), live.end(), random);
        const std::vector<ExtentId> touched(
            live.begin(),
            live.begin() + static_cast<std::ptrdiff_t>(random() % std::min<std::size_t>(6, live.size()) + 1));
        const bool is_copy = what > 85;
        Actions actions;
        const Launch event{tick, random() % 8, tick, touched};
        if (is_copy) {
          engine.copy(event, actions);
        } else {
          engine.launch(event, actions);
        }
        std::vector<std::pair<ActionKind, ExtentId>> got;
        for (const Action& action : actions) got.emplace_back(action.kind, action.extent);
        ASSERT_EQ(got, model.access(touched, is_copy)) << "tick " << tick;
        std::uint64_t own = 0;
        for (const ExtentId id : touched) own += sizes[id];
        ASSERT_LE(engine.resident_bytes(), std::max(current_budget, own));
      }
      ASSERT_EQ(engine.resident_bytes(), model.resident_bytes());
      ASSERT_EQ(engine.footprint_bytes(), model.footprint_bytes());
    }
    for (const ExtentId id : live) EXPECT_EQ(engine.is_resident(id), model.is_resident(id));
    EXPECT_EQ(engine.totals().h2d_demand_bytes, model.totals.h2d_demand_bytes);
    EXPECT_EQ(engine.totals().h2d_prefetch_bytes, model.totals.h2d_prefetch_bytes);
    EXPECT_EQ(engine.totals().d2h_demote_bytes, model.totals.d2h_demote_bytes);
    EXPECT_EQ(engine.totals().demotions, model.totals.demotions);
    EXPECT_EQ(engine.totals().budget_excursions, model.totals.budget_excursions);
  }
}

// A training loop of identical layers: weights of one block each from before the first launch; activations of two
// blocks, allocated in the forward pass and freed in the backward pass; an optimizer with one state per weight.
class TrainingLoop {
 public:
  static constexpr ExtentId kLayers = 12;
  static constexpr std::uint64_t kLaunchesPerIteration = kLayers * (4 + 6) + kLayers + 1;

  explicit TrainingLoop(Engine& engine) : engine_(engine) {
    for (ExtentId i = 0; i < 2 * kLayers; ++i) engine_.allocated({i, kBlock});
  }
  void iterate() {
    for (ExtentId layer = 0; layer < kLayers; ++layer) {
      engine_.allocated({activation(layer), 2 * kBlock});
      for (std::uint64_t k = 0; k < 4; ++k) {
        launch(k, k == 0 ? std::vector<ExtentId>{layer, activation(layer)} : std::vector<ExtentId>{activation(layer)});
      }
    }
    launch(50, {activation(kLayers - 1)});
    for (ExtentId layer = kLayers; layer-- > 0;) {
      for (std::uint64_t k = 10; k < 16; ++k) {
        launch(k, k == 10 ? std::vector<ExtentId>{layer, activation(layer)} : std::vector<ExtentId>{activation(layer)});
      }
      engine_.freed({activation(layer)});
    }
    for (ExtentId layer = 0; layer < kLayers; ++layer) launch(60, {layer, kLayers + layer});
  }
  std::vector<IterationStats> rows;

 private:
  // Ids of freed activations are reused in another order in every iteration, as an allocator would.
  [[nodiscard]] ExtentId activation(ExtentId layer) const {
    return 100 + (layer + static_cast<ExtentId>(tick_ / kLaunchesPerIteration) * 5) % kLayers;
  }
  void launch(std::uint64_t signature, const std::vector<ExtentId>& touched) {
    actions_.clear();
    engine_.launch({tick_, signature, 1000 * tick_, touched}, actions_);
    ++tick_;
    if (const auto row = engine_.take_completed_iteration()) rows.push_back(*row);
  }
  Engine& engine_;
  Actions actions_;
  Tick tick_ = 0;
};

TEST(Engine, reports_iterations_of_identical_layers_from_the_second_on) {
  Engine engine({.policy = "on_demand", .budget_bytes = 1000 * kBlock});
  TrainingLoop loop(engine);
  for (int i = 0; i < 6; ++i) loop.iterate();
  EXPECT_EQ(engine.iterations().period_launches(), TrainingLoop::kLaunchesPerIteration);
  ASSERT_GE(loop.rows.size(), 4U);
  EXPECT_GE(loop.rows[0].launches, 2 * TrainingLoop::kLaunchesPerIteration);
  EXPECT_LE(loop.rows[0].launches, 2 * TrainingLoop::kLaunchesPerIteration + 4);
  for (std::size_t i = 1; i < loop.rows.size(); ++i) {
    EXPECT_EQ(loop.rows[i].ordinal, i);
    EXPECT_EQ(loop.rows[i].launches, TrainingLoop::kLaunchesPerIteration);
    EXPECT_EQ(loop.rows[i].end_ns - loop.rows[i].begin_ns, 1000 * TrainingLoop::kLaunchesPerIteration);
    EXPECT_EQ(loop.rows[i].begin_ns, loop.rows[i - 1].end_ns);
    EXPECT_EQ(loop.rows[i].migrated.h2d_demand_bytes, 0U);
    EXPECT_EQ(loop.rows[i].footprint_bytes, 4 * TrainingLoop::kLayers * kBlock);
  }
}

TEST(Engine, finds_the_iteration_although_launches_name_extents_by_accident) {
  Engine engine({.policy = "on_demand", .budget_bytes = 100 * kBlock});
  constexpr ExtentId kExtents = 8;
  for (ExtentId id = 0; id < kExtents; ++id) engine.allocated({id, (id + 1) * kBlock});
  std::mt19937 random(1);  // NOLINT: the same sequence every time
  Actions actions;
  Tick tick = 0;
  for (int iteration = 0; iteration < 8; ++iteration) {
    for (std::uint64_t launch = 0; launch < 20; ++launch) {
      std::vector<ExtentId> touched{static_cast<ExtentId>(launch % kExtents)};
      if (random() % 4 == 0) touched.push_back(static_cast<ExtentId>(random() % kExtents));
      engine.launch({++tick, 100 + launch, 0, touched}, actions);
    }
  }
  EXPECT_EQ(engine.iterations().period_launches(), 20U);
  EXPECT_GT(engine.iterations().confidence(), 0.9);
}

TEST(Engine, rows_and_the_iteration_under_way_add_up_to_the_totals) {
  Engine engine({.policy = "on_demand", .budget_bytes = 30 * kBlock});
  TrainingLoop loop(engine);
  for (int i = 0; i < 6; ++i) loop.iterate();
  loop.rows.push_back(engine.current_iteration());
  MigrationTotals sum;
  std::uint64_t launches = 0;
  for (const IterationStats& row : loop.rows) {
    sum.h2d_demand_bytes += row.migrated.h2d_demand_bytes;
    sum.d2h_demote_bytes += row.migrated.d2h_demote_bytes;
    sum.demotions += row.migrated.demotions;
    launches += row.launches;
    EXPECT_LE(row.working_set_bytes, row.footprint_bytes);
  }
  EXPECT_EQ(launches, 6 * TrainingLoop::kLaunchesPerIteration);
  EXPECT_GT(sum.d2h_demote_bytes, 0U);
  EXPECT_EQ(sum.h2d_demand_bytes, engine.totals().h2d_demand_bytes);
  EXPECT_EQ(sum.d2h_demote_bytes, engine.totals().d2h_demote_bytes);
  EXPECT_EQ(sum.demotions, engine.totals().demotions);
}

TEST(Engine, the_working_set_is_what_an_iteration_touches_of_what_is_allocated) {
  Engine engine({.policy = "on_demand", .budget_bytes = 100 * kBlock});
  for (ExtentId id = 0; id < 20; ++id) engine.allocated({id, kBlock});
  Actions actions;
  std::vector<IterationStats> rows;
  for (Tick tick = 0; tick < 100; ++tick) {
    const std::vector<ExtentId> touched{static_cast<ExtentId>(tick % 16 / 2)};  // eight of the twenty, twice each
    engine.launch({tick, tick % 16, tick, touched}, actions);
    if (const auto row = engine.take_completed_iteration()) rows.push_back(*row);
  }
  ASSERT_GE(rows.size(), 2U);
  EXPECT_EQ(rows.back().launches, 16U);
  EXPECT_EQ(rows.back().working_set_bytes, 8 * kBlock);
  EXPECT_EQ(rows.back().footprint_bytes, 20 * kBlock);
  EXPECT_FALSE(engine.take_completed_iteration().has_value());
}

}  // namespace
}  // namespace hmshim::policy
