// G10's smart tensor migration (Zhang et al., MICRO 2023, doi 10.1145/3613424.3614309) with the host as the only other
// memory: from the whole iteration it picks, one by one, the idle interval whose absence relieves most - its bytes
// times the time during which memory is over-full -, sends the extent away at the interval's start and has it back at
// the latest time that the link allows, as the intervals picked before leave it; at last fetches move earlier as far as
// memory stays free. G10 compiles this into the program from profiled kernel times; here it is made anew whenever the
// iteration changes, from Foreknowledge: replays only. Stronger than the original: what the plan misses is fetched up
// to 8 launches ahead and evicts what is used furthest ahead, instead of faulting against an LRU.
#include <algorithm>
#include <memory>
#include <vector>

#include "policy/furthest_use.hpp"
#include "policy/mix.hpp"

namespace hmshim::policy {

namespace {

using Slot = Foresight::Slot;
using Index = std::uint32_t;  // a launch; those of the next round are n .. 2n - 1

struct Gap {
  Slot slot;
  std::uint64_t bytes;
  Index begin;  // the first launch that could run without it
  Index end;    // its next use
  Index fetch = 0;
};

// The time of the link, launch by launch of a round that repeats. One direction at a time: that is how the baselines'
// migrations run (uvm/side_migrator.hpp), and a plan that counted on both would come late.
class Link {
 public:
  explicit Link(std::vector<double> free_ns) : free_ns_(std::move(free_ns)) {}

  // Launches from `begin` on, or before `begin` backwards, that have so much time left; more than `most` if they do not
  // suffice.
  [[nodiscard]] Index launches_needed(double left_ns, Index begin, bool is_backwards, Index most) const {
    Index launches = 0;
    for (; left_ns > 0 && launches < most; ++launches) left_ns -= free_ns_[place(begin, launches, is_backwards)];
    return left_ns > 0 ? most + 1 : launches;
  }
  void use(double left_ns, Index begin, bool is_backwards) {
    for (Index launches = 0; left_ns > 0; ++launches) {
      double& free_ns = free_ns_[place(begin, launches, is_backwards)];
      const double used_ns = std::min(free_ns, left_ns);
      free_ns -= used_ns;
      left_ns -= used_ns;
    }
  }

 private:
  [[nodiscard]] std::size_t place(Index begin, Index launches, bool is_backwards) const {
    const std::size_t n = free_ns_.size();
    return (is_backwards ? begin + 2 * n - 1 - launches : begin + launches) % n;
  }

  std::vector<double> free_ns_;
};

struct Plan {
  std::vector<std::vector<Slot>> leaving;  // by launch
  std::vector<std::vector<Slot>> coming;   // by launch
};

class Planner {
 public:
  Planner(const Foresight& foresight, const Foreknowledge& known, std::uint64_t capacity_bytes);
  [[nodiscard]] Plan plan();

 private:
  void measure();
  [[nodiscard]] double relief(const Gap& gap) const;
  bool settle(Gap& gap);
  void fetch_early(Gap& gap);

  const Index n_;
  const std::int64_t capacity_bytes_;
  const Foreknowledge known_;
  std::vector<double> durations_ns_;
  Link link_;
  std::vector<std::int64_t> pressure_bytes_;  // by launch: alive and not sent away
  std::vector<double> pressed_ns_;            // time of over-full launches before launch i of two rounds
  std::vector<Gap> gaps_;
};

std::vector<double> durations_of(const Foresight& foresight) {
  std::vector<double> durations_ns;
  for (Index launch = 0; launch < foresight.launches(); ++launch)
    durations_ns.push_back(static_cast<double>(foresight.duration_ns(launch)));
  return durations_ns;
}

Planner::Planner(const Foresight& foresight, const Foreknowledge& known, std::uint64_t capacity_bytes)
    : n_(foresight.launches()),
      capacity_bytes_(static_cast<std::int64_t>(capacity_bytes)),
      known_(known),
      durations_ns_(durations_of(foresight)),
      link_(durations_ns_),
      pressure_bytes_(n_),
      pressed_ns_(std::size_t{2} * n_ + 1) {
  const auto lives = foresight.lives();
  for (Slot slot = 0; slot < lives.size(); ++slot) {
    const Foresight::Life& life = lives[slot];
    const auto add_gap = [&](Index use, Index next) {
      if (next - use > 1) gaps_.push_back({slot, life.bytes, life.birth + use + 1, life.birth + next});
    };
    for (std::size_t i = 1; i < life.uses.size(); ++i) add_gap(life.uses[i - 1], life.uses[i]);
    if (life.is_persistent) add_gap(life.uses.back(), n_ + life.uses.front());
    const Index alive = life.is_persistent ? n_ : life.uses.back() + 1;
    for (Index launch = 0; launch < alive; ++launch)
      pressure_bytes_[(life.birth + launch) % n_] += static_cast<std::int64_t>(life.bytes);
  }
}

void Planner::measure() {
  for (Index i = 0; i < 2 * n_; ++i) {
    const bool is_pressed = pressure_bytes_[i % n_] > capacity_bytes_;
    pressed_ns_[i + 1] = pressed_ns_[i] + (is_pressed ? durations_ns_[i % n_] : 0);
  }
}

double Planner::relief(const Gap& gap) const {
  return static_cast<double>(gap.bytes) * (pressed_ns_[gap.end] - pressed_ns_[gap.begin]);
}

// Sends the extent away in the gap if it can leave and be back in time.
bool Planner::settle(Gap& gap) {
  const Index length = gap.end - gap.begin;
  const auto bytes = static_cast<double>(gap.bytes);
  const double out_ns = 1e9 * bytes / known_.d2h_bytes_per_s;
  const double in_ns = 1e9 * bytes / known_.h2d_bytes_per_s;
  const Index out = link_.launches_needed(out_ns, gap.begin, false, length);
  const Index in = link_.launches_needed(in_ns, gap.end, true, length);
  if (out + in >= length) return false;
  link_.use(out_ns, gap.begin, false);
  link_.use(in_ns, gap.end, true);
  gap.fetch = gap.end - in;
  for (Index launch = gap.begin + out; launch < gap.fetch; ++launch)
    pressure_bytes_[launch % n_] -= static_cast<std::int64_t>(gap.bytes);
  gap.begin += out;  // from here on it may come back
  return true;
}

void Planner::fetch_early(Gap& gap) {
  const auto bytes = static_cast<std::int64_t>(gap.bytes);
  while (gap.fetch > gap.begin && pressure_bytes_[(gap.fetch - 1) % n_] + bytes <= capacity_bytes_)
    pressure_bytes_[--gap.fetch % n_] += bytes;
}

Plan Planner::plan() {
  Plan plan{std::vector<std::vector<Slot>>(n_), std::vector<std::vector<Slot>>(n_)};
  std::vector<Gap> settled;
  for (measure(); !gaps_.empty();) {
    const auto best = std::max_element(gaps_.begin(), gaps_.end(),
                                       [this](const Gap& a, const Gap& b) { return relief(a) < relief(b); });
    if (relief(*best) <= 0) break;
    const Index leaves_at = best->begin % n_;
    if (settle(*best)) {
      plan.leaving[leaves_at].push_back(best->slot);
      settled.push_back(*best);
      measure();
    }
    *best = gaps_.back();
    gaps_.pop_back();
  }
  std::stable_sort(settled.begin(), settled.end(), [](const Gap& a, const Gap& b) { return a.fetch < b.fetch; });
  for (Gap& gap : settled) {
    fetch_early(gap);
    plan.coming[gap.fetch % n_].push_back(gap.slot);
  }
  return plan;
}

class G10 final : public FurthestUse {
 private:
  void consult_plan(const Extents& extents, const Demand& demand, std::vector<ExtentId>& leaving,
                    std::vector<ExtentId>& coming) override;
  [[nodiscard]] bool is_held_back(ExtentId extent) const override {
    const Slot slot = foresight().slot(extent);
    return slot < is_away_.size() && is_away_[slot];
  }
  [[nodiscard]] std::uint32_t launches_of_room() const override {
    return plan_.leaving.empty() ? FurthestUse::launches_of_room() : 1;  // the plan has made room for the others
  }
  [[nodiscard]] std::uint64_t shape(std::uint64_t budget_bytes) const;

  Plan plan_;
  std::uint64_t planned_shape_ = 0;
  std::vector<bool> is_away_;  // by slot: left, and not due yet
  std::vector<Slot> due_;      // come when there is room
};

// What a plan depends on.
std::uint64_t G10::shape(std::uint64_t budget_bytes) const {
  std::uint64_t shape = mix(budget_bytes);
  for (const Foresight::Life& life : foresight().lives()) {
    shape = mix(shape + life.bytes) + (std::uint64_t{life.birth} << 1) + (life.is_persistent ? 1 : 0);
    for (const std::uint32_t use : life.uses) shape = mix(shape + use);
  }
  return shape;
}

void G10::consult_plan(const Extents& extents, const Demand& demand, std::vector<ExtentId>& leaving,
                       std::vector<ExtentId>& coming) {
  const Foreknowledge* known = demand.launch.foreknowledge;
  if (known == nullptr || foresight().lives().empty()) return;
  const Index now = foresight().position();
  if (now == 0) {
    if (const std::uint64_t now_shape = shape(demand.budget_bytes); now_shape != planned_shape_) {
      plan_ = Planner(foresight(), *known, demand.budget_bytes).plan();
      planned_shape_ = now_shape;
      is_away_.assign(foresight().lives().size(), false);
      due_.clear();
    }
  }
  if (plan_.leaving.size() != foresight().launches()) return;  // it has come into step in the middle of a round
  for (const Slot slot : plan_.leaving[now]) {
    if (const ExtentId id = foresight().extent(slot); id != kNoExtent) leaving.push_back(id);
    is_away_[slot] = true;
    std::erase(due_, slot);
  }
  for (const Slot slot : plan_.coming[now]) {
    is_away_[slot] = false;
    due_.push_back(slot);
  }
  std::erase_if(due_, [&](Slot slot) {
    const ExtentId id = foresight().extent(slot);
    return id == kNoExtent || !extents.contains(id) || extents[id].place == Place::Device;
  });
  for (const Slot slot : due_) coming.push_back(foresight().extent(slot));
  const auto next_use = [this](ExtentId id) { return foresight().next_use(id); };
  std::stable_sort(coming.begin(), coming.end(), [&](ExtentId a, ExtentId b) { return next_use(a) < next_use(b); });
}

}  // namespace

std::unique_ptr<Policy> make_g10() { return std::make_unique<G10>(); }

}  // namespace hmshim::policy
