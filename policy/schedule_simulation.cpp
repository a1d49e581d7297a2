#include "policy/schedule_simulation.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "policy/schedule_executor.hpp"

namespace hmshim::policy {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

}  // namespace

ScheduleCost simulate(const PieceMap& map, const Schedule& schedule, const CostModel& cost,
                      std::uint64_t capacity_bytes, std::uint32_t warm_up, std::uint32_t measured) {
  ScheduleExecutor executor(map, schedule, cost, capacity_bytes);
  const Tick first = Tick{warm_up} * map.launches();
  const Tick last = first + Tick{measured} * map.launches();
  ScheduleCost total;
  std::uint64_t now_ns = 0, first_ns = 0, emergencies = 0;
  std::uint64_t launch_end_ns = kNever, fetch_end_ns = kNever, writeback_end_ns = kNever;
  PieceIndex writing = 0;
  const auto is_idle = [&](std::uint64_t other_end_ns) { return cost.full_duplex || other_end_ns == kNever; };

  const auto start_launch = [&] {
    if (launch_end_ns != kNever || !executor.can_launch()) return false;
    launch_end_ns = now_ns + map.duration_ns(static_cast<LaunchIndex>(executor.tick() % map.launches()));
    executor.launch_started();
    return true;
  };
  const auto start_fetch = [&] {
    if (fetch_end_ns != kNever || !is_idle(writeback_end_ns)) return false;
    const auto piece = executor.start_fetch();
    if (!piece) return false;
    const std::uint64_t bytes = map.pieces()[*piece].bytes;
    fetch_end_ns = now_ns + cost.transfer_ns(Direction::ToDevice, bytes);
    if (executor.tick() >= first) total.h2d_bytes += bytes;
    return true;
  };
  const auto start_writeback = [&] {
    if (writeback_end_ns != kNever || !is_idle(fetch_end_ns)) return false;
    const auto piece = executor.start_writeback();
    if (!piece) return false;
    const std::uint64_t bytes = map.pieces()[*piece].bytes;
    writing = *piece;
    writeback_end_ns = now_ns + cost.transfer_ns(Direction::ToHost, bytes);
    if (executor.tick() >= first) total.d2h_bytes += bytes;
    return true;
  };

  while (true) {
    if (launch_end_ns == kNever && executor.tick() == first) {
      first_ns = now_ns;
      emergencies = executor.emergencies();
    }
    if (launch_end_ns == kNever && executor.tick() == last) break;
    // A start may make room for another: a launch releases what was reserved for it.
    for (bool is_moving = true; is_moving;) {
      is_moving = start_fetch();
      is_moving |= start_writeback();
      is_moving |= start_launch();
    }
    for (const PieceIndex piece : executor.take_drops()) {
      if (executor.tick() >= first) total.dropped_bytes += map.pieces()[piece].bytes;
    }
    total.peak_used_bytes = std::max(total.peak_used_bytes, executor.used_bytes());

    now_ns = std::min({launch_end_ns, fetch_end_ns, writeback_end_ns});
    if (now_ns == kNever) throw std::logic_error("the schedule's executor waits for nothing");
    if (launch_end_ns == now_ns) {
      launch_end_ns = kNever;
      executor.launch_finished();
    }
    if (fetch_end_ns == now_ns) {
      fetch_end_ns = kNever;
      executor.fetch_finished();
    }
    if (writeback_end_ns == now_ns) {
      writeback_end_ns = kNever;
      executor.writeback_finished(writing);
    }
  }
  total.iteration_ns = (now_ns - first_ns) / measured;
  total.h2d_bytes /= measured;
  total.d2h_bytes /= measured;
  total.dropped_bytes /= measured;
  total.emergencies = (executor.emergencies() - emergencies) / measured;
  return total;
}

}  // namespace hmshim::policy
