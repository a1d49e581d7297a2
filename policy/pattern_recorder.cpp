#include "policy/pattern_recorder.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace hmshim::policy {
namespace {

constexpr std::size_t kFewestSlots = 1024;

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
  records_.push({event.signature, operands_.end(), launches_, event.stream});
  for (const ExtentId id : event.touched) {
    if (id < live_.size() && live_[id].instance != 0) {
      operands_.push({id, live_[id].instance, live_[id].blocks});
    }
  }
}

bool PatternRecorder::are_alike(std::uint64_t begin, std::uint64_t before, std::uint64_t launches) const noexcept {
  const std::uint64_t shift = records_[begin].first_operand - records_[before].first_operand;
  for (std::uint64_t k = 0; k < launches; ++k) {
    const Record& now = records_[begin + k];
    const Record& then = records_[before + k];
    if (now.signature != then.signature || now.stream != then.stream ||
        now.first_operand - then.first_operand != shift) {
      return false;
    }
  }
  if (operands_.end() - records_[begin].first_operand != shift) return false;
  for (std::uint64_t at = records_[begin].first_operand; at < operands_.end(); ++at) {
    if (operands_[at].blocks != operands_[at - shift].blocks) return false;
  }
  return true;
}

// Right after the launch that ended the round before.
std::optional<std::uint64_t> PatternRecorder::begin_of_last(std::uint64_t launches) const noexcept {
  if (launches == 0 || launches >= launches_) return std::nullopt;
  std::uint64_t low = records_.begin(), high = records_.end();
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (launches_ - records_[middle].launches <= launches) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low + 1 < records_.end() ? std::optional(low + 1) : std::nullopt;
}

std::optional<Iteration> PatternRecorder::last_iteration(std::uint64_t launches) const {
  const std::optional<std::uint64_t> found = begin_of_last(launches);
  if (!found) return std::nullopt;
  const std::uint64_t begin = *found, count_of_records = records_.end() - begin;
  if (begin < records_.begin() + count_of_records) return std::nullopt;
  const std::uint64_t before = begin - count_of_records;
  const std::uint64_t first = records_[begin].first_operand, first_before = records_[before].first_operand;
  if (first_before < operands_.begin() || !are_alike(begin, before, count_of_records)) return std::nullopt;

  Iteration iteration;
  const std::uint64_t count = operands_.end() - first;
  iteration.operands.assign(count, kUnplanned);
  std::vector<LaunchIndex> launch_of(count);
  for (std::uint64_t k = 0; k < count_of_records; ++k) {
    const Record& record = records_[begin + k];
    const std::uint64_t end = k + 1 < count_of_records ? records_[begin + k + 1].first_operand : operands_.end();
    iteration.launches.push_back(
        {record.signature, static_cast<std::uint32_t>(record.first_operand - first), record.stream});
    for (std::uint64_t at = record.first_operand; at < end; ++at) launch_of[at - first] = static_cast<LaunchIndex>(k);
  }

  std::unordered_map<std::uint32_t, std::uint32_t> first_before_of;  // instance → operand of the round before
  for (std::uint64_t x = 0; x < count; ++x) {
    first_before_of.emplace(operands_[first_before + x].instance, static_cast<std::uint32_t>(x));
  }
  std::unordered_map<std::uint32_t, PatternExtent> extent_of;
  const auto add = [&](std::uint64_t x, LaunchIndex born, ExtentId id) {
    iteration.extents.push_back({operands_[first + x].blocks * kBlockBytes, born, static_cast<std::uint32_t>(x), id});
    return static_cast<PatternExtent>(iteration.extents.size() - 1);
  };
  for (std::uint64_t x = 0; x < count; ++x) {
    const Operand& now = operands_[first + x];
    if (const auto known = extent_of.find(now.instance); known != extent_of.end()) {
      iteration.operands[x] = known->second;
      continue;
    }
    const auto earlier = first_before_of.find(now.instance);
    PatternExtent extent = kUnplanned;
    if (earlier == first_before_of.end()) {
      extent = add(x, launch_of[x], kNoExtent);
    } else if (earlier->second == x) {
      extent = add(x, kPersistent, now.id);
    } else {
      // Born in the round before and used up in this one. This round's, born in the same place, goes on into the next.
      const std::uint64_t birth = earlier->second;
      const std::uint32_t successor = operands_[first + birth].instance;
      if (birth < x || extent_of.contains(successor) || first_before_of.contains(successor)) {
        return std::nullopt;  // buffers take turns: the round is longer
      }
      extent = add(birth, launch_of[birth], kNoExtent);
      extent_of.emplace(successor, extent);
    }
    extent_of.emplace(now.instance, extent);
    iteration.operands[x] = extent;
  }
  // In the launch of its birth an extent is what is born there.
  for (std::uint64_t x = 0; x < count; ++x) {
    const Iteration::Extent& extent = iteration.extents[iteration.operands[x]];
    if (extent.born == launch_of[x] && operands_[first + x].instance != operands_[first + extent.operand].instance) {
      iteration.operands[x] = kUnplanned;
    }
  }
  return iteration;
}

std::size_t PatternRecorder::memory_bytes() const noexcept {
  return records_.memory_bytes() + operands_.memory_bytes() + live_.capacity() * sizeof live_[0];
}

}  // namespace hmshim::policy
