#include "policy/plan_book.hpp"

#include <algorithm>
#include <utility>

namespace hmshim::policy {
namespace {

bool are_alike(const Iteration::Extent& a, const Iteration::Extent& b) {
  const bool persists = a.born == kPersistent;
  return a.bytes == b.bytes && persists == (b.born == kPersistent) && (!persists || a.id == b.id);
}

// Of the launches before the end; the end itself where they are alike.
Difference difference_before(LaunchIndex end, const Iteration& a, const Iteration& b) {
  using Mismatch = PlanFollower::Mismatch;
  for (LaunchIndex k = 0; k < end; ++k) {
    if (a.launches[k].signature != b.launches[k].signature) return {k, Mismatch::Kernel};
    if (a.launches[k].stream != b.launches[k].stream) return {k, Mismatch::Stream};
    const auto of_a = a.operands_of(k), of_b = b.operands_of(k);
    if (of_a.size() != of_b.size()) return {k, Mismatch::Count};
    for (std::size_t i = 0; i < of_a.size(); ++i) {
      if (of_a[i] == kUnplanned || of_b[i] == kUnplanned) continue;
      const Iteration::Extent &x = a.extents[of_a[i]], &y = b.extents[of_b[i]];
      if (x.bytes != y.bytes) return {k, Mismatch::Size};
      if (!are_alike(x, y)) return {k, Mismatch::Extent};
    }
  }
  return {end, Mismatch::Kernel};
}

bool begin_alike(const Iteration& a, const Iteration& b, LaunchIndex launches) {
  return difference_before(launches, a, b).launch == launches;
}

}  // namespace

bool are_alike(const Iteration& a, const Iteration& b) {
  if (&a == &b) return true;
  return a.launches.size() == b.launches.size() && a.operands == b.operands &&
         begin_alike(a, b, static_cast<LaunchIndex>(a.launches.size()));
}

Difference first_difference(const Iteration& a, const Iteration& b) {
  return difference_before(static_cast<LaunchIndex>(std::min(a.launches.size(), b.launches.size())), a, b);
}

PlanBook::Page* PlanBook::find(const Iteration& iteration) {
  const auto found = std::find_if(pages_.begin(), pages_.end(),
                                  [&](const auto& page) { return are_alike(*page->plan->iteration, iteration); });
  return found == pages_.end() ? nullptr : found->get();
}

PlanBook::Page& PlanBook::keep(std::shared_ptr<const LearnedPlan> plan) {
  Page* page = find(*plan->iteration);
  if (page == nullptr) page = pages_.emplace_back(std::make_unique<Page>()).get();
  page->plan = std::move(plan);
  note_use(*page);
  make_room();
  return *page;
}

void PlanBook::make_room() {
  std::size_t launches = 0;
  for (const auto& page : pages_) launches += page->plan->iteration->launches.size();
  while (pages_.size() > kMostPlans || (launches > kMostLaunches && pages_.size() > 1)) {
    const auto oldest =
        std::min_element(pages_.begin(), pages_.end(), [](const auto& a, const auto& b) { return a->used < b->used; });
    launches -= (*oldest)->plan->iteration->launches.size();
    pages_.erase(oldest);
  }
}

bool PlanBook::may_start(Page& page) noexcept {
  if (page.starts_to_skip == 0) return true;
  --page.starts_to_skip;
  return false;
}

std::optional<PlanBook::Entry> PlanBook::enter(const Launch& launch, std::span<const LiveExtent> extents) {
  Page* chosen = nullptr;
  for (const auto& page : pages_) {
    if (PlanFollower::mismatch(*page->plan, 0, launch, extents) != PlanFollower::Mismatch::None) continue;
    if (may_start(*page) && (chosen == nullptr || page->used > chosen->used)) chosen = page.get();
  }
  return chosen == nullptr ? std::nullopt : std::optional(Entry{chosen, 0});
}

std::optional<PlanBook::Entry> PlanBook::branch(const PlanFollower& from, const Launch& launch,
                                                std::span<const LiveExtent> extents) {
  const Iteration& left = *from.plan().iteration;
  const auto all = static_cast<LaunchIndex>(left.launches.size());
  const LaunchIndex done = from.is_between_iterations() && from.has_gone_round() ? all : from.position();
  Page* started = nullptr;
  bool was_round = false;  // what has been done is all of the plan that may start now
  for (const auto& page : pages_) {
    const LearnedPlan& plan = *page->plan;
    const std::size_t launches = plan.iteration->launches.size();
    const auto expects = [&](LaunchIndex position) {
      return PlanFollower::mismatch(plan, position, launch, extents) == PlanFollower::Mismatch::None;
    };
    const bool is_other = &plan != &from.plan();
    if (is_other && done > 0 && done < launches && expects(done) && begin_alike(left, *plan.iteration, done)) {
      if (may_start(*page)) return Entry{page.get(), done};
    }
    if ((!is_other && done == 0) || !expects(0)) continue;
    const bool is_round = is_other && done == launches && begin_alike(left, *plan.iteration, done);
    const bool is_likelier =
        started == nullptr || is_round > was_round || (is_round == was_round && page->used > started->used);
    if (!is_likelier || !may_start(*page)) continue;
    started = page.get();
    was_round = is_round;
  }
  return started == nullptr ? std::nullopt : std::optional(Entry{started, 0});
}

void PlanBook::note_end(const LearnedPlan& plan, std::uint64_t followed_launches, std::uint64_t enough_launches) {
  Page* page = find(*plan.iteration);
  if (page == nullptr) return;
  page->short_flights = followed_launches < enough_launches ? std::min(page->short_flights + 1, kMostBackOff) : 0;
  page->starts_to_skip = page->short_flights == 0 ? 0 : (1U << page->short_flights) - 1;
}

std::vector<std::shared_ptr<const LearnedPlan>> PlanBook::drop_unproven() {
  std::vector<std::shared_ptr<const LearnedPlan>> dropped;
  std::erase_if(pages_, [&](const auto& page) {
    if (page->is_unproven) dropped.push_back(page->plan);
    return page->is_unproven;
  });
  return dropped;
}

std::size_t PlanBook::memory_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& page : pages_) bytes += sizeof(Page) + page->plan->memory_bytes();
  return bytes;
}

}  // namespace hmshim::policy
