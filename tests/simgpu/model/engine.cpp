#include "tests/simgpu/model/engine.hpp"

#include <algorithm>

namespace hmshim::simgpu::machine {

Engine::Engine(Machine& machine, int device_count, RunBody run_body)
    : machine_(&machine),
      run_body_(std::move(run_body)),
      legacy_count_(static_cast<StreamId>(device_count)),
      next_stream_(legacy_count_),
      compute_(static_cast<std::size_t>(device_count)) {
  for (int device = 0; device < device_count; ++device) {
    streams_.emplace(legacy_stream(device), Stream{.device = device, .kind = StreamKind::kBlocking, .tail = nullptr});
  }
}

// ---- virtual time ----

std::optional<TimeNs> Engine::next_event_at() const {
  return events_.empty() ? std::nullopt : std::optional(events_.begin()->first.first);
}

void Engine::run_next_event() {
  auto event = events_.extract(events_.begin());
  now_ns_ = std::max(now_ns_, event.key().first);
  event.mapped()();
}

void Engine::at(TimeNs time_ns, std::function<void()> action) {
  events_.emplace(std::pair(std::max(time_ns, now_ns_), next_sequence_++), std::move(action));
}

bool Engine::poll_conditions() {
  std::vector<OpPtr> ready;
  std::erase_if(waiting_for_condition_, [&](const OpPtr& op) {
    if (!op->condition()) return false;
    ready.push_back(op);
    return true;
  });
  for (const OpPtr& op : ready) at(now_ns_, [this, op] { complete(op); });
  return !ready.empty();
}

// ---- streams ----

StreamId Engine::create_stream(int device, StreamKind kind) {
  streams_.emplace(next_stream_, Stream{.device = device, .kind = kind, .tail = nullptr});
  return next_stream_++;
}

void Engine::destroy_stream(StreamId stream) {
  const auto it = streams_.find(stream);
  it->second.is_destroyed = true;
  if (it->second.unfinished == 0) streams_.erase(it);
}

std::optional<int> Engine::device_of(StreamId stream) const {
  const auto it = streams_.find(stream);
  if (it == streams_.end() || it->second.is_destroyed) return std::nullopt;
  return it->second.device;
}

std::size_t Engine::unfinished(StreamId stream) const { return streams_.at(stream).unfinished; }

std::vector<OpPtr> Engine::blockers_of(StreamId id) const {
  std::vector<OpPtr> blockers = tails(id);
  const Stream& stream = streams_.at(id);
  if (is_legacy(id)) {
    for (const auto& [other_id, other] : streams_) {
      const bool is_peer = other_id != id && other.device == stream.device && other.kind == StreamKind::kBlocking;
      if (is_peer && other.unfinished > 0) blockers.push_back(other.tail);
    }
  } else if (stream.kind == StreamKind::kBlocking) {
    const Stream& legacy = streams_.at(legacy_stream(stream.device));
    if (legacy.unfinished > 0) blockers.push_back(legacy.tail);
  }
  return blockers;
}

std::vector<OpPtr> Engine::tails(StreamId id) const {
  const Stream& stream = streams_.at(id);
  if (stream.unfinished == 0) return {};
  return {stream.tail};
}

std::vector<OpPtr> Engine::device_tails(int device) const {
  std::vector<OpPtr> tails;
  for (const auto& [id, stream] : streams_) {
    if (stream.device == device && stream.unfinished > 0) tails.push_back(stream.tail);
  }
  return tails;
}

// ---- operations ----

void Engine::enqueue(const OpPtr& op, const OpPtr& also_after) {
  std::vector<OpPtr> blockers = blockers_of(op->stream);
  if (also_after != nullptr && !also_after->is_done) blockers.push_back(also_after);
  for (const OpPtr& blocker : blockers) blocker->followers.push_back(op);
  op->blockers = blockers.size();

  Stream& stream = streams_.at(op->stream);
  stream.tail = op;
  ++stream.unfinished;
  if (op->blockers == 0 && !op->is_held_by_caller) {
    at(std::max(op->not_before_ns, now_ns_) + op->latency_ns, [this, op] { begin(op); });
  }
}

void Engine::finish_held(const OpPtr& op, TimeNs time_ns) {
  at(time_ns, [this, op] { complete(op); });
}

void Engine::begin(const OpPtr& op) {
  if (op->condition) {
    waiting_for_condition_.push_back(op);
    poll_conditions();
    return;
  }
  if (op->resource != nullptr) {
    if (op->resource->is_busy) {
      op->resource->queue.push_back(op);
      return;
    }
    op->resource->is_busy = true;
  }
  advance(op);
}

void Engine::advance(const OpPtr& op) {
  std::optional<TimeNs> next;
  if (op->work != nullptr) next = op->work->step(now_ns_);
  if (next) {
    at(*next, [this, op] { advance(op); });
    return;
  }
  const TimeNs end_ns = op->work != nullptr ? op->work->completes_at(now_ns_) : now_ns_;
  if (end_ns > now_ns_) {
    at(end_ns, [this, op] { complete(op); });
  } else {
    complete(op);
  }
  if (op->resource != nullptr) release(*op->resource);
}

void Engine::release(Resource& resource) {
  resource.is_busy = false;
  if (resource.queue.empty()) return;
  const OpPtr next = resource.queue.front();
  resource.queue.pop_front();
  resource.is_busy = true;
  at(now_ns_, [this, next] { advance(next); });
}

void Engine::complete(const OpPtr& op) {
  // A dead device runs nothing, yet its streams drain: the guest must be able to wait, see the error and end.
  if (op->body && machine_->status_of(op->device) == Status::kOk) run_body_(op->body);
  if (op->effect) op->effect(now_ns_);
  op->body = nullptr;
  op->work = nullptr;
  op->is_done = true;
  op->done_at_ns = now_ns_;
  for (const OpPtr& follower : op->followers) {
    if (--follower->blockers > 0 || follower->is_held_by_caller) continue;
    at(std::max(follower->not_before_ns, now_ns_) + follower->latency_ns, [this, follower] { begin(follower); });
  }
  op->followers.clear();
  const auto stream = streams_.find(op->stream);
  if (--stream->second.unfinished == 0) {
    stream->second.tail = nullptr;
    if (stream->second.is_destroyed) streams_.erase(stream);
  }
  poll_conditions();
}

std::string Engine::describe() const {
  std::string text;
  for (const auto& [id, stream] : streams_) {
    if (stream.unfinished == 0) continue;
    text += "stream " + std::to_string(id) + " of device " + std::to_string(stream.device) + ": " +
            std::to_string(stream.unfinished) + " unfinished, the last one a " + stream.tail->label + "\n";
  }
  for (const OpPtr& op : waiting_for_condition_) {
    text += "stream " + std::to_string(op->stream) + ": waits for a value in memory\n";
  }
  return text;
}

}  // namespace hmshim::simgpu::machine
