// What a process tells about its iterations: JSON lines in a file, a table on stderr, both from counters.def. The
// launch path only pushes plain records; formatting and writing happen at the guest's own synchronisations and at exit.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "interpose/gate.hpp"
#include "interpose/output_file.hpp"

namespace hmshim::interpose {

namespace unit {
using count = std::uint64_t;
using bytes = std::uint64_t;
using ns = std::uint64_t;
using ratio = double;
}  // namespace unit

// The figures of one iteration, or of a whole process.
struct Counters {
#define COUNTER(name, unit_name, heading, sentence) unit::unit_name name = 0;
#include "interpose/counters.def"
#undef COUNTER
};

struct IterationRecord {
  std::uint32_t device = 0;  // ordinal
  Counters counters;
};
static_assert(std::is_trivially_copyable_v<IterationRecord>);

// A device begins to be managed.
struct StartRecord {
  std::uint32_t device = 0;
  std::string_view policy;
  std::uint64_t device_total_bytes = 0;
  std::uint64_t budget_bytes = 0;
  std::uint64_t managed_limit_bytes = 0;  // kNoLimit: the JSON says null
  bool can_migrate = false;
  std::string_view capabilities;   // one sentence: why it can or cannot
  std::string_view granularity{};  // how the framework allocates, and why
  std::string_view granularity_reason{};
};

struct AllocationTally {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;       // of all of them, freed ones included
  std::uint64_t peak_bytes = 0;  // live at one time
};

// Extents of one kind (policy/lifetimes.hpp), each of their lives counted.
struct LifetimeRecord {
  std::uint32_t device = 0;
  std::string_view lifetime;
  std::uint64_t extents = 0;
  std::uint64_t bytes = 0;
  std::uint64_t migrated_bytes = 0;
};

struct HookTally {
  std::string_view symbol;
  std::uint64_t hits = 0;
};

struct BypassTally {
  std::string_view reason;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;  // of the allocations that went past us; 0 where the call allocates nothing
};

// A library that needs device memory: what it allocated stayed there, or what it wanted to share was refused.
struct CallerTally {
  std::string name;  // of the library's file; "" for the program itself
  std::uint64_t excluded_allocations = 0;
  std::uint64_t excluded_bytes = 0;
  std::uint64_t refused_handles = 0;
  std::uint64_t refused_bytes = 0;
};

// The process ends.
struct ExitRecord {
  std::string_view policy;
  GateState gate = GateState::Active;  // the state it ends in
  Reason gate_reason = Reason::none;
  // The totals of each device, whatever ran outside of a known iteration included; `iteration` is the number of
  // iterations.
  std::vector<IterationRecord> devices;
  std::vector<LifetimeRecord> lifetimes{};
  AllocationTally managed;
  AllocationTally device;
  std::vector<HookTally> hooks;  // those without a hit are left out
  std::vector<BypassTally> bypasses;
  std::vector<CallerTally> callers;
  // What reached the driver past the library (unseen.hpp).
  std::vector<std::string> bound_to_driver;
  int driver_copies = 1;
};

// One of a process. All members may be called from any thread; none throws: out of memory or disk costs records, never
// the guest.
class Report {
 public:
  // `path` as expand_path() gave it, "" for no file. Nothing is created before the first record is written.
  Report(std::string path, bool wants_summary, pid_t pid);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // Never allocates, formats, waits or enters the kernel; when the ring is full the record is dropped and counted.
  void push(const IterationRecord& record) noexcept;
  // Whether anybody is to read it: a file or a summary is wanted, and the exit record is not written yet.
  [[nodiscard]] bool is_open() const noexcept { return is_open_.load(std::memory_order_relaxed); }

  void start(const StartRecord& record) noexcept;
  // Writes what was pushed, unless another thread is about it. Cheap when nothing was.
  void flush() noexcept;
  // Writes what was pushed, the exit record and the table. The report is closed afterwards and every later call does
  // nothing.
  void finish(const ExitRecord& record) noexcept;
  // In a forked child: the file and the table are the parent's.
  void forget_after_fork() noexcept;

 private:
  class Ring;
  // The first and the last iterations, for the table.
  struct Kept;

  void write_pushed();
  void write_line(std::string_view line);
  void write_summary(const ExitRecord& record);

  const std::string path_;
  const bool wants_summary_;
  const pid_t pid_;
  std::atomic<bool> is_open_;
  const std::unique_ptr<Ring> ring_;

  std::mutex mutex_;  // leaf lock; guards what follows
  OutputFile file_;
  bool was_opened_ = false;
  const std::unique_ptr<Kept> kept_;
};

}  // namespace hmshim::interpose
