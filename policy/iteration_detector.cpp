#include "policy/iteration_detector.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "policy/mix.hpp"

namespace hmshim::policy {
namespace {

// Arithmetic modulo the Mersenne prime 2^61 - 1: the largest whose products reduce with shifts and adds.
constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
constexpr std::uint64_t kBase = mix(1) & kPrime;

constexpr std::uint64_t reduce(std::uint64_t x) noexcept {
  x = (x & kPrime) + (x >> 61);
  return x >= kPrime ? x - kPrime : x;
}
constexpr std::uint64_t multiply(std::uint64_t a, std::uint64_t b) noexcept {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return reduce((static_cast<std::uint64_t>(product) & kPrime) + static_cast<std::uint64_t>(product >> 61));
}
constexpr std::uint64_t subtract(std::uint64_t a, std::uint64_t b) noexcept { return reduce(a + (kPrime - b)); }

std::uint64_t power_of_base(std::uint64_t exponent) noexcept {
  static constexpr auto kSquares = [] {
    std::array<std::uint64_t, 20> squares{};
    squares[0] = kBase;
    for (std::size_t i = 1; i < squares.size(); ++i) squares[i] = multiply(squares[i - 1], squares[i - 1]);
    return squares;
  }();
  std::uint64_t power = 1;
  for (; exponent != 0; exponent &= exponent - 1) {
    power = multiply(power, kSquares[static_cast<std::size_t>(std::countr_zero(exponent))]);
  }
  return power;
}

// The largest n <= limit for which matches(n) holds; matches is monotone and true at 0. Galloping: O(log n), not O(log
// limit).
template <typename Matches>
std::uint64_t largest(std::uint64_t limit, Matches matches) noexcept {
  std::uint64_t low = 0;
  std::uint64_t step = 1;
  while (low + step <= limit && matches(low + step)) {
    low += step;
    step *= 2;
  }
  for (; step > 0; step /= 2) {
    if (low + step <= limit && matches(low + step)) low += step;
  }
  return low;
}

// A repetition shorter than this is no evidence, however short its period.
constexpr std::uint64_t kMinRunLaunches = 12;
// Periods that are only similar, not equal, need some length to mean anything, and this much likeness.
constexpr std::uint64_t kMinSimilarLaunches = 64;
constexpr double kMinSimilarity = 0.1;
constexpr double kMinSimilarityToReplace = 0.5;
// A phase has come back when an iteration is this much like its last one.
constexpr double kReturned = 0.9;
// A longer period must add this share of the weight of the shorter one, and be at most this many times as long.
constexpr std::uint64_t kForeignShare = 64;
constexpr std::uint64_t kMaxMicroSteps = 64;
// At most this share of an iteration's launches is on data last touched before the iteration before: batches of a data
// set that lies in device memory are few, weights are many (a third of the launches of a layer in the transformers we
// looked at).
constexpr std::uint64_t kStaleShare = 8;
// A comparison by similarity takes some 100 steps: no more than one per this many launches.
constexpr std::uint64_t kPatienceToCompare = 32;

}  // namespace

IterationDetector::Recurrence IterationDetector::ContextMemory::record(std::uint64_t context, Position now) noexcept {
  const auto now32 = static_cast<std::uint32_t>(now);
  const auto age = [&](const Entry& entry) { return entry.context == 0 ? ~std::uint32_t{0} : now32 - entry.last; };
  Set& set = sets_[(context >> 32) % kSets];
  Entry* stalest = &set.ways[0];
  for (Entry& entry : set.ways) {
    if (entry.context == context) {
      const std::uint32_t distance = now32 - entry.last;
      const Recurrence recurrence{distance, entry.distance};
      entry.last = now32;
      entry.distance = distance;
      return recurrence;
    }
    if (age(entry) > age(*stalest)) stalest = &entry;
  }
  *stalest = {.context = context, .last = now32};
  return {};
}

IterationDetector::IterationDetector()
    : prefix_(kHistoryLaunches), foreign_(kHistoryLaunches), staleness_(kHistoryLaunches) {}

double IterationDetector::confidence() const noexcept {
  if (!has_period()) return 0;
  const double evidence = 1 - std::ldexp(1.0, -current_.iterations);
  const double expected = 1.25 * static_cast<double>(current_.reference_launches);
  const double overdue = std::max(1.0, static_cast<double>(position()) / expected);
  return current_.similarity * evidence / overdue;
}

void IterationDetector::observe(std::uint64_t signature, std::uint64_t weight, std::uint64_t staleness_launches) {
  append(signature, weight, staleness_launches);
  const Recurrence recurrence = contexts_.record(context_, observed_);
  count_foreign(recurrence);
  follow_repetition(recurrence);
  if (context_ == current_.context) {
    end_iteration();
  } else if (context_ == dormant_.context && returned_to_dormant()) {
    std::swap(current_, dormant_);
    boundary_ = observed_;
    weight_ = 0;
  } else {
    look_for_period(recurrence);
  }
}

void IterationDetector::append(std::uint64_t signature, std::uint64_t weight, std::uint64_t staleness_launches) {
  const std::uint64_t value = reduce(mix(signature));
  const std::uint64_t previous = prefix_[observed_ % kHistoryLaunches];
  const std::uint64_t foreign = foreign_[observed_ % kHistoryLaunches];
  ++observed_;
  base_power_ = multiply(base_power_, kBase);
  prefix_[observed_ % kHistoryLaunches] = reduce(previous + multiply(value, base_power_));
  foreign_[observed_ % kHistoryLaunches] = foreign;
  staleness_[observed_ % kHistoryLaunches] =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(staleness_launches, ~std::uint32_t{0}));
  weight_ += weight;

  recent_signatures_[observed_ % kContextLaunches] = value;
  recent_weights_[observed_ % kContextLaunches] = weight;
  std::uint64_t context = 0;
  for (std::size_t back = 0; back < kContextLaunches; ++back) {
    context = (context + recent_signatures_[(observed_ - back) % kContextLaunches]) * 0x9e3779b97f4a7c15;
  }
  context_ = std::max<std::uint64_t>(context ^ (context >> 32), 1);
}

// A launch is foreign to the current period when the reference iteration and all that came after it lack it. That is
// so when all contexts that contain it are new to them, which is known kContextLaunches - 1 launches later.
void IterationDetector::count_foreign(const Recurrence& recurrence) {
  const Position reference_begin = current_.reference_end - current_.reference_launches;
  const bool is_foreign =
      has_period() && (recurrence.distance == 0 || observed_ - recurrence.distance <= reference_begin);
  foreign_contexts_ = is_foreign ? foreign_contexts_ + 1 : 0;
  if (foreign_contexts_ >= kContextLaunches) {
    foreign_[observed_ % kHistoryLaunches] += recent_weights_[(observed_ + 1) % kContextLaunches];
  }
}

void IterationDetector::follow_repetition(const Recurrence& recurrence) {
  if (lag_ != 0 && equal(observed_, observed_ - lag_, 1, lag_shift_)) {
    ++run_;
    return;
  }
  lag_ = recurrence.distance <= kMaxPeriodLaunches ? recurrence.distance : 0;
  run_ = 0;
  if (lag_ == 0) return;
  lag_shift_ = power_of_base(lag_);
  run_ = common_suffix(observed_, observed_ - lag_, kMaxPeriodLaunches);
  required_run_ = std::max(lag_, kMinRunLaunches);
}

void IterationDetector::look_for_period(const Recurrence& recurrence) {
  ++patience_;
  const std::uint64_t launches = recurrence.distance;
  if (launches == 0 || launches > kMaxPeriodLaunches) return;
  // launches == lag_: the context stands nowhere else within the period, so that it can be the anchor.
  if (launches == lag_) {
    if (run_ < required_run_ || !may_replace(launches)) return;
    required_run_ = run_ + launches;  // looking at a period's data takes a step per launch: once per period
    if (returns_to_its_data(launches, launches)) adopt(launches, 1);
    return;
  }
  const std::uint64_t before = recurrence.previous_distance;
  const bool is_steady = before >= kMinSimilarLaunches && launches >= kMinSimilarLaunches && before <= 2 * launches &&
                         launches <= 2 * before;
  if (!is_steady || patience_ < std::max(kPatienceToCompare, launches / 4) || !may_replace(launches)) return;
  // Equal periods show within two iterations: give them the time before settling for less.
  if (!has_period() && position() < 2 * (launches + before)) return;
  patience_ = 0;
  const double likeness = similarity(observed_, launches, observed_ - launches, before);
  const bool is_alike = likeness >= (has_period() && !is_overdue() ? kMinSimilarityToReplace : kMinSimilarity);
  if (is_alike && returns_to_its_data(launches, launches + before)) adopt(launches, likeness);
}

bool IterationDetector::returns_to_its_data(std::uint64_t launches, std::uint64_t max_staleness) const noexcept {
  std::uint64_t stale = 0;
  for (Position at = observed_ - launches + 1; at <= observed_; ++at) {
    if (staleness_[at % kHistoryLaunches] > max_staleness) ++stale;
  }
  return stale <= launches / kStaleShare;
}

bool IterationDetector::may_replace(std::uint64_t launches) const noexcept {
  if (!has_period() || is_overdue()) return true;
  if (2 * launches <= 3 * current_.reference_launches || launches > kMaxMicroSteps * current_.reference_launches) {
    return false;
  }
  const std::uint64_t foreign =
      foreign_[observed_ % kHistoryLaunches] - foreign_[(observed_ - launches) % kHistoryLaunches];
  return foreign > 0 && foreign >= current_.reference_weight / kForeignShare;
}

void IterationDetector::adopt(std::uint64_t launches, double likeness) {
  // A phase that ended may come back (training after evaluation); a period that turned out to be a part will not.
  const double share = static_cast<double>(launches) / static_cast<double>(position());
  dormant_ = has_period() && is_overdue() ? current_ : Anchor{};
  current_ = {.context = context_,
              .reference_end = observed_,
              .reference_launches = launches,
              .reference_weight = static_cast<std::uint64_t>(share * static_cast<double>(weight_)),
              .similarity = likeness,
              .iterations = 2};
  boundary_ = observed_;
  weight_ = 0;
}

void IterationDetector::end_iteration() {
  const std::uint64_t launches = position();
  const double likeness = similarity(observed_, launches, current_.reference_end, current_.reference_launches);
  current_.similarity = (current_.similarity + likeness) / 2;
  current_.iterations = std::min(current_.iterations + 1, 30);
  const bool is_equal = likeness == 1;
  // Once out of step may be an evaluation or a logged value; twice is a new normal.
  if (is_equal || !current_.was_equal) {
    current_.reference_end = observed_;
    current_.reference_launches = launches;
    current_.reference_weight = weight_;
  }
  current_.was_equal = is_equal;
  boundary_ = observed_;
  weight_ = 0;
  ++completed_;
  if (current_.similarity < kMinSimilarity / 2) current_ = {};
}

bool IterationDetector::returned_to_dormant() const noexcept {
  return is_overdue() && similarity(observed_, dormant_.reference_launches, dormant_.reference_end,
                                    dormant_.reference_launches) >= kReturned;
}

bool IterationDetector::equal(Position a, Position b, std::uint64_t launches, std::uint64_t shift) const noexcept {
  const auto sum = [&](Position end) {
    return subtract(prefix_[end % kHistoryLaunches], prefix_[(end - launches) % kHistoryLaunches]);
  };
  return sum(a) == multiply(sum(b), shift);
}

std::uint64_t IterationDetector::common_suffix(Position a, Position b, std::uint64_t limit) const noexcept {
  const std::uint64_t oldest = observed_ < kHistoryLaunches ? 0 : observed_ - kHistoryLaunches + 1;
  const std::uint64_t shift = power_of_base(a - b);
  return b <= oldest ? 0 : largest(std::min(limit, b - oldest), [&](std::uint64_t n) { return equal(a, b, n, shift); });
}

double IterationDetector::similarity(Position end_a, std::uint64_t launches_a, Position end_b,
                                     std::uint64_t launches_b) const noexcept {
  if (!in_history(end_b, launches_b) || !in_history(end_a, launches_a)) return 0;
  const std::uint64_t shorter = std::min(launches_a, launches_b);
  const std::uint64_t longer = std::max(launches_a, launches_b);
  const std::uint64_t suffix = common_suffix(end_a, end_b, shorter);
  const Position begin_a = end_a - launches_a;
  const Position begin_b = end_b - launches_b;
  const std::uint64_t shift = power_of_base(begin_a - begin_b);
  const std::uint64_t prefix =
      largest(shorter - suffix, [&](std::uint64_t n) { return equal(begin_a + n, begin_b + n, n, shift); });
  return static_cast<double>(suffix + prefix) / static_cast<double>(longer);
}

}  // namespace hmshim::policy
