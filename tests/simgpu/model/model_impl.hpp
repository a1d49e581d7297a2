#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/simgpu/model/model.hpp"
#include "tests/simgpu/model/simulation.hpp"

namespace hmshim::simgpu {

using namespace machine;  // only the model's own sources include this file

/// What the calls of the model share beside the simulation: the objects that a guest holds handles of.
struct Model::Impl {
  explicit Impl(Options the_options);

  struct Event {
    int device;
    OpPtr record;  ///< the latest; null: never recorded
  };

  Options options;
  Simulation simulation;
  Machine& machine = simulation.machine;
  Engine& engine = simulation.engine;
  std::map<EventId, Event> events;
  EventId next_event = 1;
  std::map<std::pair<std::thread::id, int>, StreamId> per_thread_streams;
  std::set<std::uint64_t> freeing;  ///< handed to free_async, not yet freed

  [[nodiscard]] bool is_device(int device) const { return device >= 0 && device < options.device_count; }
  [[nodiscard]] bool is_managed(Range range) const;
  /// The allocation that starts at an address and that nobody is freeing.
  [[nodiscard]] const Allocation* find_live(std::uint64_t address) const;
  void release(const Allocation& allocation);
  /// An operation of a stream, not yet enqueued.
  [[nodiscard]] static OpPtr new_op(const char* label, StreamId stream, int device, TimeNs clock_ns);
};

[[nodiscard]] inline bool all_done(const std::vector<OpPtr>& ops) {
  return std::all_of(ops.begin(), ops.end(), [](const OpPtr& op) { return op->is_done; });
}

template <typename Prepare>
Status Model::enqueue(const char* label, StreamId stream, Prepare prepare, const OpPtr* also_after) {
  if (in_body()) return Status::kNotPermitted;
  Call call(impl_->simulation, profile().launch_host_ns, CallKind::kEnqueueOnly);
  Engine& engine = impl_->engine;
  const auto device = engine.device_of(stream);
  if (!device) return Status::kInvalidHandle;
  if (impl_->machine.status_of(*device) != Status::kOk) return impl_->machine.status_of(*device);
  if (engine.unfinished(stream) >= profile().queue_depth) {
    // The hardware queue is full: the CPU cannot run further ahead.
    call.wait([&] { return !engine.device_of(stream) || engine.unfinished(stream) < profile().queue_depth; });
    if (!engine.device_of(stream)) return Status::kInvalidHandle;
  }
  const OpPtr op = impl_->new_op(label, stream, *device, call.now());
  const Status status = prepare(*op);
  if (status == Status::kOk) engine.enqueue(op, also_after == nullptr ? nullptr : *also_after);
  return status;
}

}  // namespace hmshim::simgpu
