// Which streams of a context have had work, and how memory freed behind one becomes usable on another without the host
// waiting: an event of the first, waited for by the second.
//
// A free without a stream (cuMemFree) may follow work on any of them: what other allocations reach through hidden
// pointers is not known. So it stands behind every stream that ever had work; with one stream there is nothing to wait
// for.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "uvm/driver_api.hpp"

namespace hmshim::uvm {

// No locking of its own: every member is called with the owner's lock held, but for execute(), which makes the driver
// calls and is called without.
class StreamOrder {
 public:
  using Index = std::uint32_t;
  static constexpr Index kAny = ~Index{0};  // no stream named: all of them

  // All that had been enqueued on a stream, or on all, when point() was called.
  struct Point {
    Index stream = kAny;
    std::uint64_t at = 0;
  };
  struct Source {
    Index index;
    CUstream stream;
    CUevent event;
    bool is_recorded;      // before: the stream is destroyed, or of another thread
    bool is_gone;          // destroyed
    bool is_done = false;  // found complete by execute()
  };
  // Events to record, and streams that wait for all of them.
  struct Wait {
    std::vector<Source> sources{};
    std::vector<CUstream> targets{};
    std::uint64_t at = 0;
    bool is_barrier = false;  // from every stream to every stream
    bool is_possible = true;  // not if it names a lost stream, or what another thread's CU_STREAM_PER_THREAD does now
    CUevent spare = nullptr;  // an event that nobody needs any more: destroy it
  };

  // Nothing for a stream that has not been admitted yet. CU_STREAM_PER_THREAD is the calling thread's own.
  [[nodiscard]] std::optional<Index> find(CUstream stream) const noexcept;
  // A new stream, to which others are ordered from here on. It takes over `event`, unless that comes back as a spare.
  // The wait is what the stream owes before its first work; then admit() it. Threads that meet here wait twice, which
  // is harmless; the one that went ahead without waiting would not be.
  [[nodiscard]] Wait add(CUstream stream, CUevent event);
  [[nodiscard]] Index admit(CUstream stream) noexcept;
  // The stream is about to be destroyed: what it owes others is behind its event, if that could be recorded.
  void forget(Index stream, bool is_recorded) noexcept {
    slots_[stream].is_gone = true;
    slots_[stream].is_lost = !is_recorded;
  }
  // Of CU_STREAM_PER_THREAD each thread has its own: its event must be recorded by its thread, at each free.
  [[nodiscard]] bool is_per_thread(Index stream) const noexcept {
    return slots_[stream].stream == CU_STREAM_PER_THREAD;
  }
  [[nodiscard]] CUevent event_of(Index stream) const noexcept { return slots_[stream].event; }

  [[nodiscard]] Point point(Index stream) noexcept { return {stream, ++clock_}; }
  // Whether what `requester` enqueues from now on runs after the point anyway; kAny asks for every stream.
  [[nodiscard]] bool is_ordered(Point point, Index requester) const noexcept;
  // Call it when memory that is_ordered() allowed was given out to be used on any stream: streams that appear later
  // must wait for those there are now.
  void lend_to_any() noexcept { owes_newcomers_ = true; }

  // What makes is_ordered() true for `requester`.
  [[nodiscard]] Wait wait_for(Point point, Index requester) const;
  // The same for a stream of the library's own, which is not one of these.
  [[nodiscard]] Wait wait_for(std::span<const Point> points, CUstream target) const;
  // Records and waits. False when that cannot be had now (a capture is under way, say): nothing follows from it then.
  [[nodiscard]] static bool execute(const DriverApi& api, Wait& wait) noexcept;
  // After execute() was true.
  void executed(const Wait& wait) noexcept;
  // Everything before `at` has completed, as seen on the host.
  void settle(std::uint64_t at) noexcept {
    settled_ = std::max(settled_, at);
    barrier_ = std::max(barrier_, at);
  }
  [[nodiscard]] bool is_settled(Point point) const noexcept { return point.at <= settled_; }
  [[nodiscard]] std::uint64_t now() const noexcept { return clock_; }

 private:
  struct Slot {
    CUstream stream;
    std::thread::id thread;  // of CU_STREAM_PER_THREAD only
    CUevent event;
    std::uint64_t since;  // points before belong to a stream that had the slot earlier and is done
    bool is_admitted = false;
    bool is_gone = false;  // destroyed
    bool is_lost = false;  // destroyed without a record: nothing but the whole device can be waited for
    bool is_done = false;  // destroyed, and its work is complete: the slot may be used again
  };

  [[nodiscard]] std::vector<Slot>::iterator slot_of(CUstream stream) noexcept;
  void add_sources(Wait& wait, Point point) const;
  void add_target(Wait& wait, const Slot& slot) const;
  [[nodiscard]] static bool is_foreign(const Slot& slot) noexcept;

  std::vector<Slot> slots_;
  std::uint64_t clock_ = 0;
  std::uint64_t barrier_ = 0;  // points up to here are ordered before everything on the guest's streams
  std::uint64_t settled_ = 0;  // and up to here they are in the past
  std::size_t undone_ = 0;     // slots that are not done
  bool owes_newcomers_ = false;
};

}  // namespace hmshim::uvm
