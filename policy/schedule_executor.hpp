// Carries a schedule out. Knows no clock: it is told what has completed and answers what may begin now, so that the
// planner can run it against a simulated link and the library against the real one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "policy/cost_model.hpp"
#include "policy/schedule.hpp"
#include "policy/schedule_pieces.hpp"
#include "policy/schedule_projection.hpp"

namespace hmshim::policy {

// Launches run one after the other, and so do fetches. After every start and end ask again what may start. The
// references must outlive the executor.
//
// Order of fetches: earliest next touch first. A fetch begins early only if the memory that it takes is free at every
// launch up to that touch, counting what the schedule keeps, what was fetched early before it, and what could not leave
// in time when the iteration last passed there.
class ScheduleExecutor {
 public:
  static constexpr Tick kNever = std::numeric_limits<Tick>::max();

  // Begins before launch 0, with every piece where the schedule wants it then. Throws std::invalid_argument when a
  // launch touches more than the capacity.
  ScheduleExecutor(const PieceMap& map, const Schedule& schedule, const CostModel& cost, std::uint64_t capacity_bytes);
  // The same where pieces may be elsewhere: those alive then are on the device as `is_on_device` says, by piece. Begins
  // before launch `first`, which is also the first tick.
  ScheduleExecutor(const PieceMap& map, const Schedule& schedule, const CostModel& cost, std::uint64_t capacity_bytes,
                   const std::vector<bool>& is_on_device, LaunchIndex first = 0);

  // The launch that runs or, when none runs, the one that waits.
  [[nodiscard]] Tick tick() const noexcept { return tick_; }
  [[nodiscard]] bool is_running() const noexcept { return is_running_; }
  // What the waiting launch touches is on the device, and there is room for what it gives birth to.
  [[nodiscard]] bool can_launch() const noexcept;
  void launch_started();
  void launch_finished();

  // Whoever cannot ask before every launch makes promises: launches before promised() may start whenever the one before
  // them ends. What they touch stays until then, and the memory of what they give birth to is reserved.
  [[nodiscard]] Tick promised() const noexcept { return std::max(promised_, next_to_start()); }
  // One launch more, if a launch runs and all that the next one needs is certain already. False: nothing has changed.
  bool promise_next();

  // The piece to bring to the device now, if any; it takes memory from here on. Only while no fetch is under way, and
  // only for touches before `horizon`.
  [[nodiscard]] std::optional<PieceIndex> start_fetch(Tick horizon = kNever);
  void fetch_finished();

  // The piece to copy to the host now, if any. Several may be under way at once.
  [[nodiscard]] std::optional<PieceIndex> start_writeback();
  // True if the piece has left the device with it. It stays after a pre-clean copy, and, where there are clean copies,
  // if it has become needed.
  bool writeback_finished(PieceIndex piece);

  // Memory that others hold and are about to give back.
  void occupy(std::uint64_t bytes);
  void vacate(std::uint64_t bytes);

  // Pieces that left the device without a copy since the last call.
  [[nodiscard]] std::vector<PieceIndex> take_drops() { return std::exchange(drops_, {}); }

  [[nodiscard]] bool is_on_device(PieceIndex piece) const noexcept { return states_[piece].place >= Place::Device; }
  [[nodiscard]] std::uint64_t used_bytes() const noexcept { return used_bytes_; }
  // Pieces sent away against the schedule, because a launch could not get its memory otherwise. Good plans have none.
  [[nodiscard]] std::uint64_t emergencies() const noexcept { return emergencies_; }

 private:
  enum class Place : std::uint8_t {
    Unborn,     // has no contents
    Host,       // only there
    Arriving,   // being fetched
    Device,     // to stay there for now
    Departing,  // on the device, queued to leave
    Leaving,    // being copied to the host to leave
  };
  struct State {
    Place place = Place::Unborn;
    bool has_host_copy = false;  // valid, besides the contents on the device
    Tick next_tick = 0;          // of the next touch, while alive
  };
  struct Writing {
    PieceIndex piece;
    bool is_valid = true;  // nothing has written the piece since its copy began
  };
  // A min-heap by tick. Entries go stale and are skipped.
  using TickQueue =
      std::priority_queue<std::pair<Tick, PieceIndex>, std::vector<std::pair<Tick, PieceIndex>>, std::greater<>>;

  [[nodiscard]] LaunchIndex index(Tick tick) const noexcept { return static_cast<LaunchIndex>(tick % map_.launches()); }
  [[nodiscard]] std::uint64_t bytes(PieceIndex piece) const noexcept { return map_.pieces()[piece].bytes; }
  [[nodiscard]] Tick next_to_start() const noexcept { return tick_ + (is_running_ ? 1 : 0); }
  [[nodiscard]] bool is_awaited(PieceIndex piece) const noexcept {
    return !is_running_ && states_[piece].next_tick == tick_;
  }
  [[nodiscard]] std::uint64_t reserved_bytes() const noexcept;
  [[nodiscard]] std::uint64_t growth_bytes(Tick end) const noexcept;
  [[nodiscard]] bool is_short() const noexcept;
  [[nodiscard]] bool is_worth_leaving(PieceIndex piece) const;
  [[nodiscard]] bool may_fetch(PieceIndex piece) const;
  [[nodiscard]] std::vector<Writing>::iterator find_writing(PieceIndex piece);
  void spoil_copy(PieceIndex piece);
  void project(PieceIndex piece, std::int64_t sign);
  void depart(PieceIndex piece);
  void keep(PieceIndex piece);
  void drop(PieceIndex piece);
  void await(Tick tick);
  void relieve();

  const PieceMap& map_;
  const Schedule& schedule_;
  const CostModel& cost_;
  std::uint64_t capacity_bytes_;
  std::vector<std::uint64_t> death_bytes_;  // by launch: of the pieces that die in it
  // By touch: the one before it of the same piece, and how long ago.
  std::vector<std::pair<TouchIndex, std::uint32_t>> before_;

  std::vector<State> states_;
  Projection projection_;
  TickQueue absent_;       // by next touch
  TickQueue precleaning_;  // by the tick in which the piece is to leave
  std::deque<PieceIndex> departing_;
  std::optional<PieceIndex> fetching_;
  std::vector<Writing> writing_;
  std::vector<PieceIndex> drops_;

  Tick tick_ = 0;
  bool is_running_ = false;
  Tick promised_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t departing_bytes_ = 0;     // Departing and Leaving
  std::uint64_t freed_at_end_bytes_ = 0;  // by the running launch
  std::size_t missing_pieces_ = 0;        // of the waiting launch: not on the device
  std::uint64_t missing_bytes_ = 0;       // of those: not arriving either
  std::uint64_t emergencies_ = 0;
};

}  // namespace hmshim::policy
