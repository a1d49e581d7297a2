#include "policy/plan_follower.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace hmshim::policy {
namespace {

bool is_live(std::span<const LiveExtent> extents, ExtentId id) noexcept {
  return id < extents.size() && extents[id].bytes != 0;
}

}  // namespace

bool covers(std::span<const Range> ranges, const Range& wanted) noexcept {
  std::uint64_t at = wanted.base;
  const std::uint64_t end = wanted.base + wanted.bytes;
  auto range = std::upper_bound(ranges.begin(), ranges.end(), at,
                                [](std::uint64_t base, const Range& other) { return base < other.base; });
  if (range == ranges.begin()) return false;
  for (--range; range != ranges.end() && range->base <= at; ++range) {
    at = std::max(at, range->base + range->bytes);
    if (at >= end) return true;
  }
  return false;
}

PlanFollower::PlanFollower(std::shared_ptr<const LearnedPlan> plan, Tick first_step,
                           std::span<const LiveExtent> extents, LaunchIndex position)
    : plan_(std::move(plan)),
      first_tick_(plan_->steps.step_of_launch[position]),
      first_step_(first_step - first_tick_),
      position_(position),
      enqueued_end_(first_step),
      lives_(plan_->iteration->extents.size()),
      opened_(first_tick_),
      opened_ns_(plan_->steps.count()),
      measured_ns_(plan_->steps.count()) {
  is_planned_.resize(extents.size());
  for (PatternExtent extent = 0; extent < lives_.size(); ++extent) {
    const Iteration::Extent& expected = plan_->iteration->extents[extent];
    if (expected.born == kPersistent && is_live(extents, expected.id)) {
      is_planned_[expected.id] = true;
      lives_[extent].push_back({0, extents[expected.id].base});
    }
  }
}

PlanFollower::PlanFollower(std::shared_ptr<const LearnedPlan> plan, Tick first_step,
                           std::span<const LiveExtent> extents, LaunchIndex position, const PlanFollower& before)
    : PlanFollower(std::move(plan), first_step, extents, position) {
  is_disturbed_ = before.is_disturbed_;
  const Iteration& iteration = *plan_->iteration;
  const std::size_t known = iteration.launches[position].first_operand;
  for (std::size_t x = 0; x < known; ++x) {
    const PatternExtent extent = iteration.operands[x], same = before.plan_->iteration->operands[x];
    if (extent == kUnplanned || same == kUnplanned || before.lives_[same].empty()) continue;
    if (iteration.extents[extent].born != kPersistent) lives_[extent].assign(1, {0, before.lives_[same].back().base});
  }
}

PlanFollower::Mismatch PlanFollower::mismatch(const LearnedPlan& plan, LaunchIndex position, const Launch& launch,
                                              std::span<const LiveExtent> extents) {
  const Iteration& iteration = *plan.iteration;
  if (launch.signature != iteration.launches[position].signature) return Mismatch::Kernel;
  if (launch.stream != iteration.launches[position].stream) return Mismatch::Stream;
  const auto operands = iteration.operands_of(position);
  std::size_t i = 0;
  for (const ExtentId id : launch.touched) {
    if (!is_live(extents, id)) continue;
    if (i == operands.size()) return Mismatch::Count;
    const PatternExtent extent = operands[i++];
    if (extent == kUnplanned) continue;
    const Iteration::Extent& expected = iteration.extents[extent];
    if (extents[id].bytes != expected.bytes) return Mismatch::Size;
    if (expected.born == kPersistent && id != expected.id) return Mismatch::Extent;
  }
  return i == operands.size() ? Mismatch::None : Mismatch::Count;
}

PlanFollower::Enqueued PlanFollower::enqueue(const Launch& launch, std::span<const LiveExtent> extents) {
  if (mismatch(*plan_, position_, launch, extents) != Mismatch::None || !continues_lives(launch, extents)) {
    return {judge_foreign(launch, extents)};
  }
  const Steps& steps = plan_->steps;
  const LaunchIndex step = steps.step_of_launch[position_];
  const Tick tick = round_ * steps.count() + step;
  const auto stream = static_cast<std::uint8_t>(1U << launch.stream);
  const bool begins_step = steps.first_launch[step] == position_;
  if (begins_step) streams_begun_ = 0;
  const bool begins_stream = (streams_begun_ & stream) == 0;
  streams_begun_ |= stream;
  enqueued_end_ = first_step_ + tick + 1;
  pass(launch, extents, tick);
  return {.match = Match::Expected,
          .step = first_step_ + tick,
          .is_settled = !is_disturbed_ && followed_launches_ > plan_->iteration->launches.size(),
          .begins_step = begins_step,
          .begins_stream = begins_stream};
}

bool PlanFollower::enqueue_within_step(const Launch& launch, std::span<const LiveExtent> extents) {
  const Steps& steps = plan_->steps;
  const LaunchIndex step = steps.step_of_launch[position_];
  if (launch.stream >= kMostStreams || steps.first_launch[step] == position_) return false;
  if ((streams_begun_ >> launch.stream & 1) == 0) return false;
  if (mismatch(*plan_, position_, launch, extents) != Mismatch::None || !continues_lives(launch, extents)) return false;
  pass(launch, extents, round_ * steps.count() + step);
  return true;
}

// On to the next launch.
void PlanFollower::pass(const Launch& launch, std::span<const LiveExtent> extents, Tick tick) {
  foreign_launches_ = 0;
  foreign_bytes_ = 0;
  ++followed_launches_;
  bind(position_, launch, extents, tick);
  if (++position_ == plan_->iteration->launches.size()) {
    position_ = 0;
    ++round_;
  }
}

PlanFollower::Match PlanFollower::judge_foreign(const Launch& launch, std::span<const LiveExtent> extents) {
  is_disturbed_ |= !launch.touched.empty();
  for (const ExtentId id : launch.touched) {
    const bool is_planned = id < is_planned_.size() && is_planned_[id];
    if (is_live(extents, id) && !is_planned) foreign_bytes_ += extents[id].bytes;
  }
  const bool is_little =
      ++foreign_launches_ <= kMostForeignLaunches && foreign_bytes_ <= plan_->capacity_bytes / kForeignPerCapacity;
  return is_little ? Match::Foreign : Match::Diverged;
}

// What was born under this plan is what the launch names, not its successor of a later round.
bool PlanFollower::continues_lives(const Launch& event, std::span<const LiveExtent> extents) const {
  const auto operands = plan_->iteration->operands_of(position_);
  std::size_t i = 0;
  for (const ExtentId id : event.touched) {
    if (!is_live(extents, id)) continue;
    const PatternExtent extent = operands[i++];
    if (extent == kUnplanned || plan_->iteration->extents[extent].born == position_ || lives_[extent].empty()) continue;
    if (lives_[extent].back().base != extents[id].base) return false;
  }
  return true;
}

void PlanFollower::bind(LaunchIndex launch, const Launch& event, std::span<const LiveExtent> extents, Tick tick) {
  const Iteration& iteration = *plan_->iteration;
  const auto operands = iteration.operands_of(launch);
  const Tick oldest = executor_ ? executor_->tick() : 0;
  std::size_t i = 0;
  for (const ExtentId id : event.touched) {
    if (!is_live(extents, id)) continue;
    const std::size_t operand = iteration.launches[launch].first_operand + i;
    const PatternExtent extent = operands[i++];
    if (extent == kUnplanned || iteration.extents[extent].born == kPersistent) continue;
    std::vector<Life>& lives = lives_[extent];
    if (iteration.extents[extent].operand == operand) {
      while (lives.size() > 1 && lives[1].born <= oldest) lives.erase(lives.begin());
      lives.push_back({tick, extents[id].base, extents[id].is_backed});
    } else if (lives.empty()) {
      lives.push_back({0, extents[id].base});
    }
  }
}

void PlanFollower::end() { has_ended_ = true; }

// The latest that has begun by then.
const PlanFollower::Life* PlanFollower::life_of(PieceIndex piece, Tick tick) const {
  const std::vector<Life>& lives = lives_[plan_->map.pieces()[piece].extent];
  const auto life = std::find_if(lives.rbegin(), lives.rend(), [tick](const Life& l) { return l.born <= tick; });
  return life == lives.rend() ? nullptr : &*life;
}

std::optional<Range> PlanFollower::range_of(PieceIndex index, Tick tick) const {
  const Piece& piece = plan_->map.pieces()[index];
  const Life* life = life_of(index, tick);
  if (life == nullptr) return std::nullopt;
  return Range{life->base + piece.offset_bytes, piece.bytes};
}

void PlanFollower::begin(std::span<const Range> on_device, bool evicts_rest, std::uint64_t now_ns) {
  const PieceMap& map = plan_->map;
  std::vector<bool> is_on_device(map.pieces().size());
  for (PieceIndex piece = 0; piece < is_on_device.size(); ++piece) {
    const std::optional<Range> range = range_of(piece, 0);
    // What was born in the round before has just been used.
    is_on_device[piece] = range ? covers(on_device, *range) : !map.pieces()[piece].is_persistent;
  }
  executor_.emplace(map, plan_->plan.schedule, plan_->cost, plan_->capacity_bytes, is_on_device,
                    static_cast<LaunchIndex>(first_tick_));
  if (evicts_rest) {
    for (const Range& range : strangers(on_device)) {
      executor_->occupy(range.bytes);
      strangers_.push_back(range);
    }
  }
  finished_ns_ = now_ns;
  advance(now_ns);
}

// Whole ranges only: what the plan knows a part of is the plan's.
std::vector<Range> PlanFollower::strangers(std::span<const Range> on_device) const {
  std::vector<Range> known;
  for (PatternExtent extent = 0; extent < lives_.size(); ++extent) {
    if (!lives_[extent].empty()) known.push_back({lives_[extent].back().base, plan_->iteration->extents[extent].bytes});
  }
  std::sort(known.begin(), known.end(), [](const Range& a, const Range& b) { return a.base < b.base; });
  std::vector<Range> strangers;
  for (const Range& range : on_device) {
    const auto after = std::upper_bound(known.begin(), known.end(), range.base,
                                        [](std::uint64_t base, const Range& other) { return base < other.base; });
    const bool reaches_in = after != known.begin() && std::prev(after)->base + std::prev(after)->bytes > range.base;
    const bool reaches_out = after != known.end() && after->base < range.base + range.bytes;
    if (!reaches_in && !reaches_out) strangers.push_back(range);
  }
  return strangers;
}

bool PlanFollower::finish(Tick end, std::uint64_t now_ns) {
  const Tick first = executor_->tick();
  end = std::min(end, enqueued_end_) - first_step_;
  while (executor_->tick() < end) {
    if (!executor_->is_running()) {
      if (!executor_->can_launch()) return false;
      start_step();
    }
    executor_->launch_finished();
  }
  if (opened_ < executor_->tick()) {
    opened_ = executor_->tick();
    birth_cursor_ = 0;
  }
  if (end > first) measure(first, end, now_ns);
  advance(now_ns);
  return true;
}

// Several steps seen to end at once share their time as the plan expects it.
void PlanFollower::measure(Tick first, Tick end, std::uint64_t now_ns) {
  const LaunchIndex n = plan_->steps.count();
  const std::uint64_t begin_ns = std::max(finished_ns_, opened_ns_[first % n]);
  const std::uint64_t total_ns = now_ns > begin_ns ? now_ns - begin_ns : 0;
  const std::uint64_t expected_ns = std::max<std::uint64_t>(plan_->map.compute_ns(first, end), 1);
  for (Tick tick = first; tick < end; ++tick) {
    const auto step = static_cast<LaunchIndex>(tick % n);
    measured_ns_[step] =
        static_cast<std::uint64_t>(static_cast<double>(total_ns) * static_cast<double>(plan_->map.duration_ns(step)) /
                                   static_cast<double>(expected_ns));
    has_measured_ |= step + 1 == n && tick - first_tick_ + 1 >= n;
  }
  finished_ns_ = now_ns;
}

std::vector<std::uint64_t> PlanFollower::take_measured_durations() {
  if (!std::exchange(has_measured_, false)) return {};
  std::vector<std::uint64_t> durations_ns = plan_->durations_ns;
  for (LaunchIndex k = 0; k < durations_ns.size(); ++k) {
    const LaunchIndex step = plan_->steps.step_of_launch[k];
    const std::uint64_t expected_ns = std::max<std::uint64_t>(plan_->map.duration_ns(step), 1);
    durations_ns[k] = std::max<std::uint64_t>(
        static_cast<std::uint64_t>(static_cast<double>(durations_ns[k]) * static_cast<double>(measured_ns_[step]) /
                                   static_cast<double>(expected_ns)),
        1);
  }
  return durations_ns;
}

Tick PlanFollower::openable_end() const {
  const Tick end = has_ended_ ? enqueued_end_ - first_step_ : ScheduleExecutor::kNever;
  return std::min(executor_->promised(), end);
}

void PlanFollower::start_step() {
  given_bytes_[executor_->tick() % given_bytes_.size()] = 0;  // counted as used from here on
  executor_->launch_started();
}

// Starts the step that may run, promises those after it, and opens what is promised and has its memory.
void PlanFollower::advance(std::uint64_t now_ns) {
  if (!executor_) return;
  const Tick end = has_ended_ ? enqueued_end_ - first_step_ : ScheduleExecutor::kNever;
  if (!executor_->is_running() && executor_->tick() < end && executor_->can_launch()) start_step();
  while (executor_->promised() < executor_->tick() + kPromisedSteps && executor_->promise_next()) {
  }
  while (opened_ < openable_end() && !is_giving_memory_) {
    const auto step = static_cast<LaunchIndex>(opened_ % plan_->steps.count());
    if (plan_->map.birth_bytes(step) > 0) {
      // What is born is known once it is enqueued; a launch that comes later within the step faults for its own.
      if (enqueued_end_ <= first_step_ + opened_) return;
      skip_to_birth();
      if (has_birth()) return;
    }
    opened_ns_[step] = now_ns;
    ++opened_;
    birth_cursor_ = 0;
  }
}

void PlanFollower::skip_to_birth() {
  const auto step = static_cast<LaunchIndex>(opened_ % plan_->steps.count());
  birth_cursor_ = std::max(birth_cursor_, plan_->map.touch_begin(step));
  while (birth_cursor_ < plan_->map.touch_end(step)) {
    const PieceTouch& touch = plan_->map.touches()[birth_cursor_];
    const Life* life = touch.is_birth ? life_of(touch.piece, opened_) : nullptr;
    if (life != nullptr && life->born == opened_ && !life->is_backed) return;
    ++birth_cursor_;
  }
}

bool PlanFollower::has_birth() const {
  return birth_cursor_ < plan_->map.touch_end(static_cast<LaunchIndex>(opened_ % plan_->steps.count()));
}

// The next birth to be given memory, the rest of one extent: if it is known, and what is to die before it has died.
std::optional<Fetch> PlanFollower::start_birth() {
  if (opened_ >= openable_end() || enqueued_end_ <= first_step_ + opened_ || !has_birth()) return std::nullopt;
  const PieceMap& map = plan_->map;
  const auto step = static_cast<LaunchIndex>(opened_ % plan_->steps.count());
  const PatternExtent extent = map.pieces()[map.touches()[birth_cursor_].piece].extent;
  Range range = *range_of(map.touches()[birth_cursor_].piece, opened_);
  TouchIndex cursor = birth_cursor_;
  for (++cursor; cursor < map.touch_end(step); ++cursor) {
    const Piece& piece = map.pieces()[map.touches()[cursor].piece];
    if (piece.extent != extent) break;
    range.bytes += piece.bytes;
  }
  if (opened_ >= executor_->tick() + (executor_->is_running() ? 1 : 0)) {
    const std::uint64_t given_bytes = std::accumulate(given_bytes_.begin(), given_bytes_.end(), range.bytes);
    if (executor_->used_bytes() + given_bytes > plan_->budget_bytes - plan_->most_retired_bytes()) return std::nullopt;
    given_bytes_[opened_ % given_bytes_.size()] += range.bytes;
  }
  birth_cursor_ = cursor;
  is_giving_memory_ = true;
  return Fetch{range, true};
}

std::optional<Fetch> PlanFollower::start_fetch(std::uint64_t now_ns) {
  if (!executor_) return std::nullopt;
  const Tick end = has_ended_ ? enqueued_end_ - first_step_ : ScheduleExecutor::kNever;
  advance(now_ns);
  if (const std::optional<Fetch> birth = start_birth()) return birth;
  while (const auto piece = executor_->start_fetch(end)) {
    if (const auto range = range_of(*piece, executor_->tick())) return Fetch{*range, false};
    executor_->fetch_finished();  // born before the plan began and not yet named since: nobody knows where it is
    advance(now_ns);
  }
  return std::nullopt;
}

void PlanFollower::fetch_finished(std::uint64_t now_ns) {
  if (!std::exchange(is_giving_memory_, false)) executor_->fetch_finished();
  advance(now_ns);
}

std::optional<WriteBack> PlanFollower::start_writeback(std::uint64_t now_ns) {
  if (!executor_) return std::nullopt;
  if (!strangers_.empty()) {
    const Range stranger = strangers_.front();
    strangers_.pop_front();
    return WriteBack{stranger, std::nullopt};
  }
  while (const auto piece = executor_->start_writeback()) {
    if (const auto range = range_of(*piece, executor_->tick())) return WriteBack{*range, *piece};
    executor_->writeback_finished(*piece);
    advance(now_ns);
  }
  return std::nullopt;
}

void PlanFollower::writeback_finished(const WriteBack& writeback, std::uint64_t now_ns) {
  if (writeback.piece) {
    executor_->writeback_finished(*writeback.piece);
  } else {
    executor_->vacate(writeback.range.bytes);
  }
  advance(now_ns);
}

std::vector<Range> PlanFollower::on_device() const {
  std::vector<Range> ranges;
  for (PieceIndex piece = 0; executor_ && piece < plan_->map.pieces().size(); ++piece) {
    const auto range = executor_->is_on_device(piece) ? range_of(piece, executor_->tick()) : std::nullopt;
    if (range) ranges.push_back(*range);
  }
  ranges.insert(ranges.end(), strangers_.begin(), strangers_.end());
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.base < b.base; });
  return ranges;
}

}  // namespace hmshim::policy
