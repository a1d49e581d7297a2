#include "policy/pattern_recorder.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace hmshim::policy {
namespace {

constexpr std::size_t kFewestSlots = 1024;
// Longer, and what came between two iterations was a phase of its own.
constexpr std::uint32_t kMostInsertedRounds = 4;

}  // namespace

template <class T>
void PatternRecorder::Ring<T>::push(const T& value) {
  if (end_ == slots_.size() && end_ < most_slots_) {
    slots_.resize(std::min(std::max(2 * slots_.size(), kFewestSlots),
                           most_slots_));  // not yet wrapped: everything keeps its place
  }
  slots_[end_ % slots_.size()] = value;
  ++end_;
}

void PatternRecorder::allocated(ExtentId extent, std::uint64_t bytes) {
  if (extent >= live_.size()) live_.resize(extent + 1);
  live_[extent] = {++last_instance_, static_cast<std::uint32_t>(bytes / kBlockBytes)};
}

void PatternRecorder::freed(ExtentId extent) {
  if (extent < live_.size()) live_[extent] = {};
}

void PatternRecorder::launch(const Launch& launch) {
  ++launches_;
  record(launch);
}

void PatternRecorder::copy(const Launch& launch) { record(launch); }

void PatternRecorder::record(const Launch& event) {
  records_.push({event.signature, operands_.end(), launches_, event.stream, event.is_part});
  for (const ExtentId id : event.touched) {
    if (id < live_.size() && live_[id].instance != 0) {
      operands_.push({id, live_[id].instance, live_[id].blocks});
    }
  }
}

// The first place after the launch of that number.
std::uint64_t PatternRecorder::end_of_launch(std::uint32_t launch) const noexcept {
  std::uint64_t low = records_.begin(), high = records_.end();
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (launches_ - records_[middle].launches <= launches_ - launch) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return std::min(low + 1, records_.end());
}

void PatternRecorder::end_iteration(std::uint64_t launches) {
  const auto n = static_cast<std::uint32_t>(launches);
  const bool is_known = end_ > records_.begin() && end_ < records_.end() &&
                        launches_ - records_[end_ - 1].launches <= kMostInsertedRounds * n;
  if (is_known) {
    begin_before_ = begin_;
    begin_ = end_;
  } else {  // the first: everything since the start came before it
    begin_before_ = launches_ > 2 * n ? end_of_launch(launches_ - 2 * n) : records_.begin();
    begin_ = launches_ > n ? end_of_launch(launches_ - n) : records_.begin();
  }
  end_ = records_.end();
}

std::uint64_t PatternRecorder::operands_end(std::uint64_t record) const noexcept {
  return record + 1 < records_.end() ? records_[record + 1].first_operand : operands_.end();
}

bool PatternRecorder::are_alike(std::uint64_t a, std::uint64_t b) const noexcept {
  const Record& x = records_[a];
  const Record& y = records_[b];
  const std::uint64_t count = operands_end(a) - x.first_operand;
  if (x.signature != y.signature || x.stream != y.stream || count != operands_end(b) - y.first_operand) return false;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (operands_[x.first_operand + i].blocks != operands_[y.first_operand + i].blocks) return false;
  }
  return true;
}

// Takes out of the longer one what the shorter one lacks. False when more than one piece differs. Where calls look
// alike, copies above all, the piece may have more than one place.
bool PatternRecorder::align(Calls& before, Calls& now, Insertion insertion) const {
  Calls& longer = before.size() > now.size() ? before : now;
  const Calls& shorter = before.size() > now.size() ? now : before;
  std::size_t prefix = 0, suffix = 0;
  const auto extend_prefix = [&] {
    while (prefix + suffix < shorter.size() && are_alike(shorter[prefix], longer[prefix])) ++prefix;
  };
  const auto extend_suffix = [&] {
    while (prefix + suffix < shorter.size() &&
           are_alike(shorter[shorter.size() - 1 - suffix], longer[longer.size() - 1 - suffix])) {
      ++suffix;
    }
  };
  if (insertion == Insertion::Late) extend_prefix();
  extend_suffix();
  extend_prefix();
  if (prefix + suffix < shorter.size()) return false;
  longer.erase(longer.begin() + static_cast<std::ptrdiff_t>(prefix),
               longer.end() - static_cast<std::ptrdiff_t>(suffix));
  return true;
}

std::vector<PatternRecorder::Operand> PatternRecorder::operands_of(const Calls& calls) const {
  std::vector<Operand> operands;
  for (const std::uint64_t call : calls) {
    for (std::uint64_t at = records_[call].first_operand; at < operands_end(call); ++at)
      operands.push_back(operands_[at]);
  }
  return operands;
}

std::optional<Iteration> PatternRecorder::last_iteration() const {
  if (begin_ == end_ || begin_before_ == begin_ || begin_before_ < records_.begin() ||
      records_[begin_before_].first_operand < operands_.begin()) {
    return std::nullopt;
  }
  for (const Insertion insertion : {Insertion::Early, Insertion::Late}) {
    Calls now(end_ - begin_), before(begin_ - begin_before_);
    std::iota(now.begin(), now.end(), begin_);
    std::iota(before.begin(), before.end(), begin_before_);
    if (!align(before, now, insertion)) continue;
    if (std::optional<Iteration> iteration = repetition(before, now)) return iteration;
  }
  return std::nullopt;
}

std::optional<Iteration> PatternRecorder::repetition(const Calls& before, const Calls& now) const {
  Iteration iteration;
  const std::vector<Operand> operands = operands_of(now), operands_before = operands_of(before);
  const std::size_t count = operands.size();
  iteration.operands.assign(count, kUnplanned);
  std::vector<LaunchIndex> launch_of;
  for (const std::uint64_t call : now) {
    const Record& record = records_[call];
    const auto k = static_cast<LaunchIndex>(iteration.launches.size());
    iteration.launches.push_back(
        {record.signature, static_cast<std::uint32_t>(launch_of.size()), record.stream, record.is_part});
    launch_of.resize(launch_of.size() + operands_end(call) - record.first_operand, k);
  }

  std::unordered_map<std::uint32_t, std::uint32_t> first_before_of;  // instance → operand of the round before
  for (std::size_t x = 0; x < count; ++x) {
    first_before_of.emplace(operands_before[x].instance, static_cast<std::uint32_t>(x));
  }
  std::unordered_map<std::uint32_t, PatternExtent> extent_of;
  const auto add = [&](std::size_t x, LaunchIndex born, ExtentId id) {
    iteration.extents.push_back({operands[x].blocks * kBlockBytes, born, static_cast<std::uint32_t>(x), id});
    return static_cast<PatternExtent>(iteration.extents.size() - 1);
  };
  for (std::size_t x = 0; x < count; ++x) {
    const Operand& operand = operands[x];
    if (const auto known = extent_of.find(operand.instance); known != extent_of.end()) {
      iteration.operands[x] = known->second;
      continue;
    }
    const auto found = first_before_of.find(operand.instance);
    PatternExtent extent = kUnplanned;
    if (found == first_before_of.end()) {
      extent = add(x, launch_of[x], kNoExtent);
    } else if (found->second == x) {
      extent = add(x, kPersistent, operand.id);
    } else {
      // Born in the round before and used up in this one. This round's, born in the same place, goes on into the next.
      const std::uint64_t birth = found->second;
      const std::uint32_t successor = operands[birth].instance;
      if (birth < x || extent_of.contains(successor) || first_before_of.contains(successor)) {
        return std::nullopt;  // buffers take turns: the round is longer
      }
      extent = add(birth, launch_of[birth], kNoExtent);
      extent_of.emplace(successor, extent);
    }
    extent_of.emplace(operand.instance, extent);
    iteration.operands[x] = extent;
  }
  // In the launch of its birth an extent is what is born there.
  for (std::size_t x = 0; x < count; ++x) {
    const Iteration::Extent& extent = iteration.extents[iteration.operands[x]];
    if (extent.born == launch_of[x] && operands[x].instance != operands[extent.operand].instance) {
      iteration.operands[x] = kUnplanned;
    }
  }
  return iteration;
}

std::size_t PatternRecorder::memory_bytes() const noexcept {
  return records_.memory_bytes() + operands_.memory_bytes() + live_.capacity() * sizeof live_[0];
}

}  // namespace hmshim::policy
