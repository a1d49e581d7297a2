// Flies one device: learns its iteration, has it planned, and carries the plan out beside the program.
//
// Threads, all of the library's own and started with the first plan: the planner; the conductor, who follows the
// device's progress and opens the gates; and the migrators, one that fetches and two that write back. They share the
// pilot's lock with the guest's launches and make no driver call while they hold it.
//
// The program reports and waits through words in its own streams (uvm/progress.hpp): a step's end is reported when the
// next one is enqueued, and a step that is not open yet when it is enqueued waits at the gate. Whatever happens - the
// program turns away, a call fails, the device stands still, the process ends - every gate opens: then data is missed
// and faults, as without a plan.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "interpose/pattern_file.hpp"
#include "policy/learned_plan.hpp"
#include "policy/pattern_recorder.hpp"
#include "policy/plan_book.hpp"
#include "policy/plan_follower.hpp"
#include "uvm/driver_api.hpp"
#include "uvm/migration_lane.hpp"
#include "uvm/progress.hpp"
#include "uvm/worker.hpp"

namespace hmshim::interpose {

// Since the start.
struct PilotTotals {
  std::uint64_t plans = 0;
  std::uint64_t plan_evaluations = 0;
  std::uint64_t plan_ns = 0;           // of the planner's thread, real time
  std::uint64_t planned_launches = 0;  // that ran as a plan foresaw
  std::uint64_t divergences = 0;
  std::uint64_t gates = 0;  // launches that had to wait for their data when they were enqueued
  std::uint64_t fetched_bytes = 0;
  std::uint64_t written_back_bytes = 0;
};

class Pilot {
 public:
  Pilot(const uvm::DriverApi& driver, std::uint16_t device) : driver_(driver), device_(device) {}
  ~Pilot() { shut(); }
  Pilot(const Pilot&) = delete;
  Pilot& operator=(const Pilot&) = delete;

  // ---- under the engine host's lock; no driver call is made

  // An iteration of another run, to be planned as soon as there is a context to work in. Before all else.
  void foresee(const LearnedPattern& pattern, std::uint64_t budget_bytes);
  // True if a plan is wanted, as below.
  [[nodiscard]] bool allocated(policy::ExtentId extent, const policy::LiveExtent& live, std::uint64_t context);
  void freed(policy::ExtentId extent);
  // An allocated extent has no memory of the device after all.
  void discarded(policy::ExtentId extent);
  void record(const policy::Launch& launch, bool is_copy);
  // The launch just recorded ended an iteration of so many launches. True if a plan is wanted: call wake_planner() when
  // the lock is free again.
  [[nodiscard]] bool iteration_completed(std::uint64_t launches, double confidence, std::uint64_t footprint_bytes,
                                         std::uint64_t budget_bytes);

  // True as long as launches must come through enqueue(). Any thread, without the lock.
  [[nodiscard]] bool is_engaged() const noexcept { return is_engaged_.load(std::memory_order_acquire); }

  // What must be enqueued before a launch of the program, in this order.
  struct Clearance {
    bool is_planned = false;   // the plan goes on with the launch, or after it
    bool is_certain = false;   // and its data will be there
    bool has_begun = false;    // it is the first of a plan: what is resident and not part of the plan should go
    bool has_ended = false;    // the program has turned away: what the engine believes of places is out of date
    std::uint8_t reports = 0;  // streams that report `reported` steps as finished, bit i for stream i
    std::uint64_t reported = 0;
    std::uint64_t gate = 0;  // the launch waits until so many steps are open; 0: it need not
    bool rings_conductor = false;
    bool rings_fetcher = false;
    std::uint64_t most_retired_bytes = 0;  // that may stay on the device
    std::uint64_t fetched_bytes = 0;       // since the last clearance
    std::uint64_t written_back_bytes = 0;
  };
  // `is_resident(extent)` is the engine's belief; asked when a plan begins.
  [[nodiscard]] Clearance enqueue(const policy::Launch& launch, CUstream stream,
                                  const std::function<bool(policy::ExtentId)>& is_resident);
  // The same for a launch about which nothing need be done, without the host's lock: true if the launch was one.
  [[nodiscard]] bool enqueue_within_step(const policy::Launch& launch) noexcept;
  [[nodiscard]] bool is_following() const;
  [[nodiscard]] bool is_in_plan(policy::ExtentId extent) const;
  [[nodiscard]] std::uint64_t planned_launches() const;  // of one iteration; 0 without a plan
  // After has_ended: which of the live extents are on the device, as far as the plan knows.
  [[nodiscard]] bool is_on_device(policy::ExtentId extent) const;
  [[nodiscard]] std::span<const policy::LiveExtent> extents() const noexcept { return extents_; }

  // ---- by the guest's thread, without the lock

  void wake_planner();
  void issue(const Clearance& clearance, CUstream stream) noexcept;
  // The guest has waited for its streams: what has been enqueued is over, and is reported.
  void settle() noexcept;
  // What has been learned, for the next run; and why what a run before had learned was of no use, as one line.
  [[nodiscard]] std::vector<LearnedPattern> patterns() const;
  [[nodiscard]] std::string disproof() const;
  // Opens every gate and ends the threads. Nothing is planned any more.
  void shut() noexcept;

  [[nodiscard]] bool is_of(std::uint64_t context) const;
  [[nodiscard]] PilotTotals totals() const;

 private:
  // A prefetch to the host returns when the CPU has mapped the pages; the link would stand still meanwhile if no other
  // call were under way.
  static constexpr std::size_t kWriters = 2;

  struct Flight {
    std::shared_ptr<policy::PlanFollower> follower;
    std::vector<policy::Range> resident;  // when it begins
    std::uint64_t first_step;
    std::uint8_t streams;    // that take part
    bool continues = false;  // where the flight before it ends, without a launch between them
    bool is_branch = false;  // with another plan
  };
  struct Request {
    std::shared_ptr<const policy::Iteration> iteration;
    std::vector<std::uint64_t> durations_ns;  // by launch; empty: not measured yet
    std::uint64_t budget_bytes;
    bool is_foreseen = false;
  };
  // Moved by a migrator, and how long it took.
  struct Traffic {
    std::uint64_t bytes = 0;
    std::uint64_t busy_ns = 0;
    Traffic& operator+=(const Traffic& more) noexcept {
      bytes += more.bytes;
      busy_ns += more.busy_ns;
      return *this;
    }
    [[nodiscard]] double bytes_per_s(double otherwise) const noexcept;
  };

  void plan();
  void conduct();
  void fetch();
  void write_back(std::size_t index);
  [[nodiscard]] bool enter_context() noexcept;
  [[nodiscard]] policy::CostModel cost_model() const;
  void start_threads();
  [[nodiscard]] std::function<void()> thread_body(std::function<void()> body);

  // The lock is held:
  struct Progressed {
    bool has_changed = false;
    bool wants_plan = false;
  };
  [[nodiscard]] Progressed follow_progress(const uvm::Progress::Words& words);
  [[nodiscard]] bool has_reached(const Flight& flight, const uvm::Progress::Words& words) const;
  [[nodiscard]] std::uint64_t steps_finished(const Flight& flight, const uvm::Progress::Words& words) const;
  [[nodiscard]] bool wish_better_plan(const Flight& flight);
  [[nodiscard]] bool is_stuck(std::uint64_t now_ns);
  [[nodiscard]] std::shared_ptr<policy::PlanFollower> current() const;
  void take_off(std::shared_ptr<policy::PlanFollower> follower, policy::PlanBook::Page& page,
                const std::function<bool(policy::ExtentId)>& is_resident, Clearance& clearance);
  void renew(const policy::Launch& launch, const std::function<bool(policy::ExtentId)>& is_resident,
             Clearance& clearance);
  [[nodiscard]] bool branch(const policy::Launch& launch, const std::function<bool(policy::ExtentId)>& is_resident,
                            Clearance& clearance);
  void diverge(Clearance& clearance);
  void disprove(const policy::Iteration& iteration);
  void land(Clearance& clearance);
  void believe();
  void judge(CUresult result);
  void count_written(std::uint64_t bytes, std::uint64_t now_ns);
  void abandon() noexcept;
  // For good; what is enqueued runs without a plan.
  void end_planning() noexcept;

  // Who is to be woken once the lock is free.
  struct Rings {
    bool planner = false;
    bool fetcher = false;
    std::array<bool, kWriters> writers{};
    bool has_opened = false;  // a gate
  };
  // Gates that may open do; after a change whoever is idle may have something to do.
  [[nodiscard]] Rings spread(bool has_changed);
  void ring(const uvm::Worker& self, Rings rings) noexcept;

  const uvm::DriverApi& driver_;
  const std::uint16_t device_;
  std::atomic<bool> is_engaged_{false};
  std::atomic<bool> is_shut_{false};
  std::atomic<bool> is_planner_started_{false};
  std::array<std::atomic<CUstream>, uvm::Progress::kStreams> streams_{};

  // Guarded by the engine host's lock.
  policy::PatternRecorder recorder_;

  mutable std::mutex mutex_;  // guards what follows
  std::uint64_t context_ = 0;
  std::uint64_t budget_bytes_ = 0;
  std::vector<policy::LiveExtent> extents_;  // by ExtentId; changed under the engine host's lock as well
  std::vector<Request> foreseen_;            // until there is a context
  std::deque<Request> requests_;
  bool is_planning_ = false;
  policy::PlanBook book_;
  std::deque<Flight> flights_;   // the first is what the device does, the last what the program enqueues
  bool is_following_ = false;    // the program is in the last one
  std::uint64_t next_step_ = 1;  // the first that no flight has; words begin as 0
  std::uint64_t opened_ = 0;
  std::vector<policy::Range> believed_;  // on the device when the program turned away
  bool must_resync_ = false;             // the engine has not heard of that yet
  std::uint64_t reported_ = 0;
  bool is_fetcher_idle_ = false;
  Traffic fetched_;
  Traffic written_back_;
  std::uint64_t written_until_ns_ = 0;  // how far written_back_ counts, while anything is written back
  PilotTotals totals_;
  PilotTotals told_;  // bytes that clearances have told of
  std::string disproof_;
  std::vector<bool> is_in_plan_;         // by ExtentId: of the plans followed since the program was last without
  std::uint64_t declined_launches_ = 0;  // of the iteration for which there was no plan
  std::uint32_t declined_ = 0;           // so often in a row
  std::uint32_t iterations_to_skip_ = 0;
  // The device stands still at a closed gate since then, in a state that these sum up.
  std::uint64_t stuck_since_ns_ = 0;
  std::uint64_t stuck_state_ = 0;

  uvm::Progress progress_{driver_};
  uvm::MigrationLane fetch_lane_{driver_};
  uvm::Worker planner_{driver_, "planner"};
  uvm::Worker conductor_{driver_, "conductor"};
  uvm::Worker fetcher_{driver_, "fetcher"};
  struct Writer {
    explicit Writer(const uvm::DriverApi& driver) : lane(driver), worker(driver, "writer") {}
    uvm::MigrationLane lane;
    uvm::Worker worker;
    bool is_idle = false;  // guarded by mutex_, and so is the next
    bool is_moving = false;
  };
  std::array<Writer, kWriters> writers_{Writer{driver_}, Writer{driver_}};
};

}  // namespace hmshim::interpose
