#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/simgpu/model/work.hpp"

namespace hmshim::simgpu::machine {

/// One operation of a stream: a node in the graph of what waits for what.
struct Op : std::enable_shared_from_this<Op> {
  const char* label = "";
  StreamId stream = 0;
  int device = 0;
  TimeNs not_before_ns = 0;             ///< the host's clock when it was enqueued
  TimeNs latency_ns = 0;                ///< from "ready" to running
  std::unique_ptr<Work> work;           ///< null: takes no time
  std::function<bool()> condition;      ///< set: waits until it holds
  Body body;                            ///< guest code, run at the end without the model's lock
  std::function<void(TimeNs)> effect;   ///< the model's own action at the end
  struct Resource* resource = nullptr;  ///< what it has to itself while it runs
  bool is_held_by_caller = false;       ///< ends when the caller says so (Engine::finish_held)

  std::size_t blockers = 0;
  std::vector<std::shared_ptr<Op>> followers;
  bool is_done = false;
  TimeNs done_at_ns = 0;
};
using OpPtr = std::shared_ptr<Op>;

/// Serves one operation at a time, first come first served.
struct Resource {
  bool is_busy = false;
  std::deque<OpPtr> queue;
};

/// Streams, events and operations: order of execution in virtual time. Single-threaded: guarded by the model's lock,
/// which `run_body` drops while guest code runs.
class Engine {
 public:
  using RunBody = std::function<void(const Body&)>;
  Engine(Machine& machine, int device_count, RunBody run_body);

  // -- virtual time
  [[nodiscard]] TimeNs now() const { return now_ns_; }
  [[nodiscard]] std::optional<TimeNs> next_event_at() const;
  void run_next_event();
  /// Nothing is left before `time_ns`.
  void pass_to(TimeNs time_ns) { now_ns_ = std::max(now_ns_, time_ns); }
  void at(TimeNs time_ns, std::function<void()> action);
  /// Examines again what waits for a value in memory. True when something can go on.
  bool poll_conditions();
  [[nodiscard]] bool has_conditions() const { return !waiting_for_condition_.empty(); }

  // -- streams
  StreamId create_stream(int device, StreamKind kind);
  [[nodiscard]] StreamId legacy_stream(int device) const { return static_cast<StreamId>(device); }
  [[nodiscard]] bool is_legacy(StreamId stream) const { return stream < legacy_count_; }
  void destroy_stream(StreamId stream);
  [[nodiscard]] std::optional<int> device_of(StreamId stream) const;
  [[nodiscard]] std::size_t unfinished(StreamId stream) const;
  /// What a new operation of the stream would wait for.
  [[nodiscard]] std::vector<OpPtr> blockers_of(StreamId stream) const;
  /// The unfinished operations at the end of a stream / of all streams of a device.
  [[nodiscard]] std::vector<OpPtr> tails(StreamId stream) const;
  [[nodiscard]] std::vector<OpPtr> device_tails(int device) const;

  /// Adds an operation to its stream; it starts when its blockers, and `also_after`, are done.
  void enqueue(const OpPtr& op, const OpPtr& also_after = nullptr);
  void finish_held(const OpPtr& op, TimeNs time_ns);

  [[nodiscard]] Resource& compute(int device) { return compute_[static_cast<std::size_t>(device)]; }
  [[nodiscard]] Resource& deferred_worker() { return deferred_worker_; }
  [[nodiscard]] std::string describe() const;

 private:
  struct Stream {
    int device;
    StreamKind kind;
    OpPtr tail;
    std::size_t unfinished = 0;
    bool is_destroyed = false;
  };
  void begin(const OpPtr& op);
  void advance(const OpPtr& op);
  void complete(const OpPtr& op);
  void release(Resource& resource);

  Machine* machine_;
  RunBody run_body_;
  TimeNs now_ns_ = 0;
  std::uint64_t next_sequence_ = 0;
  /// Equal times in order of creation.
  std::map<std::pair<TimeNs, std::uint64_t>, std::function<void()>> events_;
  std::vector<OpPtr> waiting_for_condition_;
  StreamId legacy_count_;
  StreamId next_stream_;
  std::map<StreamId, Stream> streams_;
  std::vector<Resource> compute_;
  Resource deferred_worker_;
};

}  // namespace hmshim::simgpu::machine
