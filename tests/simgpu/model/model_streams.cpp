#include <cstring>

#include "tests/simgpu/model/model_impl.hpp"

namespace hmshim::simgpu {
namespace {

std::uint64_t load(std::uint64_t address, int bytes) {
  if (bytes == 4) return __atomic_load_n(reinterpret_cast<const std::uint32_t*>(address), __ATOMIC_ACQUIRE);
  return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(address), __ATOMIC_ACQUIRE);
}

void store(std::uint64_t address, std::uint64_t value, int bytes) {
  if (bytes == 4) {
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(address), static_cast<std::uint32_t>(value), __ATOMIC_RELEASE);
  } else {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(address), value, __ATOMIC_RELEASE);
  }
}

bool holds(WaitCondition condition, std::uint64_t found, std::uint64_t value, int bytes) {
  switch (condition) {
    case WaitCondition::kGreaterOrEqual:  // cyclic, as cuda.h defines it: (int)(*addr - value) >= 0
      if (bytes == 4) return static_cast<std::int32_t>(static_cast<std::uint32_t>(found - value)) >= 0;
      return static_cast<std::int64_t>(found - value) >= 0;
    case WaitCondition::kEqual:
      return bytes == 4 ? static_cast<std::uint32_t>(found) == static_cast<std::uint32_t>(value) : found == value;
    case WaitCondition::kAnd:
      return (found & value) != 0;
    case WaitCondition::kNor:
      return (bytes == 4 ? static_cast<std::uint32_t>(~(found | value)) : ~(found | value)) != 0;
  }
  return false;
}

bool is_value_access(std::uint64_t address, int bytes) {
  return address != 0 && (bytes == 4 || bytes == 8) && address % static_cast<std::uint64_t>(bytes) == 0;
}

}  // namespace

OpPtr Model::Impl::new_op(const char* label, StreamId stream, int device, TimeNs clock_ns) {
  auto op = std::make_shared<Op>();
  op->label = label;
  op->stream = stream;
  op->device = device;
  op->not_before_ns = clock_ns;
  return op;
}

// ---- streams and events ---------------------------------------------------------------------------------------------

Status Model::create_stream(int device, StreamKind kind, StreamId* stream) {
  if (in_body()) return Status::kNotPermitted;
  const Call call(impl_->simulation, profile().call_host_ns);
  if (!impl_->is_device(device)) return Status::kInvalidValue;
  *stream = impl_->engine.create_stream(device, kind);
  return impl_->machine.status_of(device);
}

Status Model::destroy_stream(StreamId stream) {
  if (in_body()) return Status::kNotPermitted;
  const Call call(impl_->simulation, profile().call_host_ns);
  if (!impl_->engine.device_of(stream) || impl_->engine.is_legacy(stream)) return Status::kInvalidHandle;
  for (const auto& [key, own] : impl_->per_thread_streams) {
    if (own == stream) return Status::kInvalidHandle;
  }
  impl_->engine.destroy_stream(stream);
  return Status::kOk;
}

StreamId Model::legacy_stream(int device) const { return impl_->engine.legacy_stream(device); }

StreamId Model::per_thread_stream(int device) {
  const auto lock = impl_->simulation.lock();
  const auto [it, is_new] = impl_->per_thread_streams.try_emplace({std::this_thread::get_id(), device}, 0);
  if (is_new) it->second = impl_->engine.create_stream(device, StreamKind::kBlocking);
  return it->second;
}

Status Model::stream_device(StreamId stream, int* device) const {
  const auto lock = impl_->simulation.lock();
  const auto found = impl_->engine.device_of(stream);
  if (!found) return Status::kInvalidHandle;
  *device = *found;
  return Status::kOk;
}

Status Model::synchronize_stream(StreamId stream) {
  if (in_body()) return Status::kNotPermitted;
  Call call(impl_->simulation, profile().call_host_ns);
  const auto device = impl_->engine.device_of(stream);
  if (!device) return Status::kInvalidHandle;
  // The legacy stream stands for all blocking ones.
  const std::vector<OpPtr> before =
      impl_->engine.is_legacy(stream) ? impl_->engine.blockers_of(stream) : impl_->engine.tails(stream);
  call.wait([&] { return all_done(before); });
  return impl_->machine.status_of(*device);
}

Status Model::query_stream(StreamId stream) {
  if (in_body()) return Status::kNotPermitted;
  const Call call(impl_->simulation, profile().call_host_ns);
  const auto device = impl_->engine.device_of(stream);
  if (!device) return Status::kInvalidHandle;
  if (impl_->machine.status_of(*device) != Status::kOk) return impl_->machine.status_of(*device);
  const bool is_idle =
      impl_->engine.is_legacy(stream) ? impl_->engine.blockers_of(stream).empty() : impl_->engine.tails(stream).empty();
  return is_idle ? Status::kOk : Status::kNotReady;
}

Status Model::synchronize_device(int device) {
  if (in_body()) return Status::kNotPermitted;
  Call call(impl_->simulation, profile().call_host_ns);
  if (!impl_->is_device(device)) return Status::kInvalidValue;
  const std::vector<OpPtr> before = impl_->engine.device_tails(device);
  call.wait([&] { return all_done(before); });
  return impl_->machine.status_of(device);
}

Status Model::create_event(int device, EventId* event) {
  if (in_body()) return Status::kNotPermitted;
  const Call call(impl_->simulation, profile().call_host_ns);
  if (!impl_->is_device(device)) return Status::kInvalidValue;
  *event = impl_->next_event++;
  impl_->events.emplace(*event, Impl::Event{.device = device, .record = nullptr});
  return impl_->machine.status_of(device);
}

Status Model::destroy_event(EventId event) {
  if (in_body()) return Status::kNotPermitted;
  const Call call(impl_->simulation, profile().call_host_ns);
  return impl_->events.erase(event) == 1 ? Status::kOk : Status::kInvalidHandle;
}

Status Model::record_event(EventId event, StreamId stream) {
  return enqueue("event record", stream, [&](Op& op) {
    const auto it = impl_->events.find(event);
    if (it == impl_->events.end()) return Status::kInvalidHandle;
    it->second.record = op.shared_from_this();
    return Status::kOk;
  });
}

Status Model::wait_event(StreamId stream, EventId event) {
  OpPtr record;
  return enqueue(
      "event wait", stream,
      [&](Op&) {
        const auto it = impl_->events.find(event);
        if (it == impl_->events.end()) return Status::kInvalidHandle;
        record = it->second.record;
        return Status::kOk;
      },
      &record);
}

Status Model::synchronize_event(EventId event) {
  if (in_body()) return Status::kNotPermitted;
  Call call(impl_->simulation, profile().call_host_ns);
  const auto it = impl_->events.find(event);
  if (it == impl_->events.end()) return Status::kInvalidHandle;
  const int device = it->second.device;
  if (const OpPtr record = it->second.record) call.wait([&] { return record->is_done; });
  return impl_->machine.status_of(device);
}

Status Model::query_event(EventId event) {
  if (in_body()) return Status::kNotPermitted;
  const Call call(impl_->simulation, profile().call_host_ns);
  const auto it = impl_->events.find(event);
  if (it == impl_->events.end()) return Status::kInvalidHandle;
  const Impl::Event& found = it->second;
  if (impl_->machine.status_of(found.device) != Status::kOk) return impl_->machine.status_of(found.device);
  return found.record == nullptr || found.record->is_done ? Status::kOk : Status::kNotReady;
}

Status Model::event_elapsed(EventId start, EventId end, TimeNs* elapsed_ns) {
  if (in_body()) return Status::kNotPermitted;
  const Call call(impl_->simulation, profile().call_host_ns);
  const auto first = impl_->events.find(start);
  const auto last = impl_->events.find(end);
  if (first == impl_->events.end() || last == impl_->events.end()) return Status::kInvalidHandle;
  const OpPtr& from = first->second.record;
  const OpPtr& to = last->second.record;
  if (from == nullptr || to == nullptr) return Status::kInvalidHandle;
  if (!from->is_done || !to->is_done) return Status::kNotReady;
  *elapsed_ns = to->done_at_ns - from->done_at_ns;
  return impl_->machine.status_of(first->second.device);
}

// ---- operations -----------------------------------------------------------------------------------------------------

Status Model::launch(StreamId stream, Kernel kernel) {
  return enqueue("kernel", stream, [&](Op& op) {
    op.work = std::make_unique<KernelWork>(impl_->machine, op.device, std::move(kernel.accesses), kernel.duration_ns);
    op.body = std::move(kernel.body);
    op.resource = &impl_->engine.compute(op.device);
    op.latency_ns = profile().launch_device_ns;
    return Status::kOk;
  });
}

Status Model::copy(StreamId stream, Copy copy) {
  return enqueue("copy", stream, [&](Op& op) {
    op.work = std::make_unique<CopyWork>(impl_->machine, op.device, copy.destination, copy.source, copy.bytes);
    op.body = std::move(copy.body);
    if (!op.body && copy.bytes > 0) {
      op.body = [to = reinterpret_cast<void*>(copy.destination), from = reinterpret_cast<const void*>(copy.source),
                 bytes = copy.bytes] { std::memmove(to, from, bytes); };
    }
    return Status::kOk;
  });
}

Status Model::fill(StreamId stream, Fill fill) {
  if (!fill.body) return Status::kInvalidValue;
  return enqueue("fill", stream, [&](Op& op) {
    op.work = std::make_unique<CopyWork>(impl_->machine, op.device, fill.destination, std::nullopt, fill.bytes);
    op.body = std::move(fill.body);
    return Status::kOk;
  });
}

Status Model::host_function(StreamId stream, Body body) {
  return enqueue("host function", stream, [&](Op& op) {
    op.body = std::move(body);
    return Status::kOk;
  });
}

Status Model::write_value(StreamId stream, std::uint64_t address, std::uint64_t value, int bytes) {
  if (!is_value_access(address, bytes)) return Status::kInvalidValue;
  return enqueue("value write", stream, [&](Op& op) {
    op.effect = [=](TimeNs) { store(address, value, bytes); };
    return Status::kOk;
  });
}

Status Model::wait_value(StreamId stream, std::uint64_t address, std::uint64_t value, int bytes,
                         WaitCondition condition) {
  if (!is_value_access(address, bytes)) return Status::kInvalidValue;
  return enqueue("value wait", stream, [&](Op& op) {
    op.condition = [=] { return holds(condition, load(address, bytes), value, bytes); };
    return Status::kOk;
  });
}

}  // namespace hmshim::simgpu
