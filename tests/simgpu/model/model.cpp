#include "tests/simgpu/model/model.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/simgpu/model/agents.hpp"
#include "tests/simgpu/model/engine.hpp"

namespace hmshim::simgpu {

using namespace machine;

namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(1);

thread_local bool t_in_body = false;

struct CurrentAgent {
  const void* model = nullptr;
  AgentId agent = kGuest;
};
thread_local CurrentAgent t_agent;

Options checked(Options options) {
  if (options.device_count < 1 || options.device_count > 16) {
    throw std::invalid_argument("simulated GPU: device count " + std::to_string(options.device_count) +
                                " is not in 1..16");
  }
  Profile& profile = options.profile;
  if (options.capacity_bytes) profile.capacity_bytes = *options.capacity_bytes / kBlockBytes * kBlockBytes;
  if (options.host_ram_bytes) profile.host_ram_bytes = *options.host_ram_bytes;
  if (profile.capacity_bytes == 0) throw std::invalid_argument("simulated GPU: the capacity is less than 2 MiB");
  if (profile.link_curve.empty()) throw std::invalid_argument("simulated GPU: the profile was not loaded from a file");
  return options;
}

bool all_done(const std::vector<OpPtr>& ops) {
  for (const OpPtr& op : ops) {
    if (!op->is_done) return false;
  }
  return true;
}

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

const char* to_string(Status status) {
  switch (status) {
    case Status::kOk:
      return "ok";
    case Status::kNotReady:
      return "not ready";
    case Status::kInvalidValue:
      return "invalid value";
    case Status::kInvalidHandle:
      return "invalid handle";
    case Status::kOutOfMemory:
      return "out of memory";
    case Status::kIllegalAddress:
      return "illegal address";
    case Status::kFaultOutOfMemory:
      return "out of memory in a fault";
    case Status::kNotPermitted:
      return "not permitted in a body";
  }
  return "unknown";
}

const char* to_string(Cause cause) {
  static constexpr std::array<const char*, kCauseCount> kNames = {"user",     "coherence", "demand",
                                                                  "eviction", "copy",      "remote"};
  return kNames[static_cast<std::size_t>(cause)];
}

// ---- time
// ------------------------------------------------------------------------------------------------------------

struct Model::Impl {
  explicit Impl(Options the_options)
      : options(checked(std::move(the_options))),
        machine(options.profile, options.device_count),
        engine(machine, options.device_count, [this](const Body& body) { run_body(body); }) {}

  /// A thread in a blocking call. Whoever makes its condition true settles its clock in the same breath.
  struct Waiter {
    AgentId agent;
    std::function<bool()> condition;
    bool is_satisfied = false;
  };
  struct Event {
    int device;
    OpPtr record;  ///< the latest; null: never recorded
  };

  Options options;
  mutable std::mutex mutex;
  std::condition_variable progress;
  std::uint64_t progress_count = 0;
  int sleeping_threads = 0;
  bool has_reported_stall = false;
  bool is_stepping = false;  ///< a thread is inside an event, possibly in guest code without the lock
  Machine machine;
  Engine engine;
  Agents agents;
  std::vector<Waiter*> waiters;
  std::map<EventId, Event> events;
  EventId next_event = 1;
  std::map<std::pair<std::thread::id, int>, StreamId> per_thread_streams;
  std::set<std::uint64_t> freeing;  ///< handed to free_async, not yet freed

  using Lock = std::unique_lock<std::mutex>;

  [[nodiscard]] AgentId current_agent() const { return t_agent.model == this ? t_agent.agent : kGuest; }

  void announce() {
    ++progress_count;
    if (sleeping_threads > 0) progress.notify_all();
  }

  void run_body(const Body& body) {
    mutex.unlock();
    t_in_body = true;
    body();
    t_in_body = false;
    mutex.lock();
  }

  [[nodiscard]] bool has_event_until(TimeNs time_ns) const {
    const auto next = engine.next_event_at();
    return next && *next <= time_ns;
  }

  [[nodiscard]] bool can_step() const {
    const auto next = engine.next_event_at();
    if (is_stepping || !next) return false;
    const auto horizon = agents.horizon();
    return !horizon || *next <= *horizon;
  }

  void step() {
    is_stepping = true;
    engine.run_next_event();
    is_stepping = false;
    satisfy_waiters();
    announce();
  }

  void satisfy_waiters() {
    std::erase_if(waiters, [this](Waiter* waiter) {
      if (!waiter->condition()) return false;
      Agents::Agent& agent = *agents.find(waiter->agent);
      agent.clock_ns = std::max(agent.clock_ns, engine.now());
      --agent.waiting;
      waiter->is_satisfied = true;
      return true;
    });
  }

  /// Runs the simulation, or lets other threads run it, until `is_ready`.
  template <typename IsReady>
  void drive(Lock& lock, IsReady is_ready) {
    while (!is_ready()) {
      if (can_step()) {
        step();
      } else {
        sleep(lock);
      }
    }
  }

  void sleep(Lock& lock) {
    const std::uint64_t before = progress_count;
    const auto patience = std::chrono::seconds(options.stall_report_s);
    const auto deadline = std::chrono::steady_clock::now() + patience;
    ++sleeping_threads;
    while (progress_count == before) {
      // The guest's CPU may store the awaited value without telling anybody.
      const bool polls = engine.has_conditions() && !is_stepping;
      if (polls && engine.poll_conditions()) announce();
      if (progress_count != before) break;
      const auto wake_at = polls ? std::chrono::steady_clock::now() + kPollInterval : deadline;
      progress.wait_until(lock, std::min(wake_at, deadline));
      if (progress_count == before && std::chrono::steady_clock::now() >= deadline) {
        report_stall();
        break;
      }
    }
    --sleeping_threads;
    if (progress_count != before) has_reported_stall = false;
  }

  void report_stall() {
    if (std::exchange(has_reported_stall, true)) return;
    const std::string text =
        "simulated GPU: no progress for " + std::to_string(options.stall_report_s) + " s of real time\n" + describe();
    if (options.on_stall) {
      options.on_stall(text);
    } else {
      std::fputs(text.c_str(), stderr);
    }
  }

  /// Lets everything happen that comes before a call of `agent` at `time_ns`.
  void settle(Lock& lock, AgentId agent, TimeNs time_ns) {
    // Nodes of the map stay put; only the agent's own thread removes it.
    Agents::Agent& self = *agents.find(agent);
    const auto entry = self.entering.insert(time_ns);
    announce();
    do {
      drive(lock, [&] { return !is_stepping && !has_event_until(time_ns) && agents.is_turn(agent, time_ns); });
      engine.pass_to(time_ns);
    } while (engine.poll_conditions());
    self.entering.erase(entry);
  }

  void wait(Lock& lock, AgentId agent, std::function<bool()> condition) {
    Agents::Agent& self = *agents.find(agent);
    if (!condition()) {
      Waiter waiter{.agent = agent, .condition = std::move(condition)};
      waiters.push_back(&waiter);
      ++self.waiting;
      announce();
      drive(lock, [&] { return waiter.is_satisfied; });
    }
    settle(lock, agent, self.clock_ns);
  }

  [[nodiscard]] std::string describe() const {
    std::string text = "virtual time " + std::to_string(engine.now()) + " ns\n";
    for (const auto& [id, agent] : agents.all()) {
      text += "agent " + agent.name + " at " + std::to_string(agent.clock_ns) + " ns: ";
      if (!agent.entering.empty()) {
        text += "waits for its turn to make a call";
      } else if (agent.waiting > 0) {
        text += "waits in a blocking call";
      } else {
        text += "is outside of the model and holds time";
      }
      text += "\n";
    }
    return text + engine.describe();
  }

  // -- what calls share

  [[nodiscard]] bool is_device(int device) const { return device >= 0 && device < options.device_count; }

  [[nodiscard]] bool is_managed(Range range) const {
    if (range.bytes == 0) return false;
    const Allocation* allocation = machine.memory.find(range.address, range.bytes);
    return allocation != nullptr && allocation->kind == MemoryKind::kManaged;
  }

  [[nodiscard]] OpPtr new_op(const char* label, StreamId stream, int device, TimeNs clock_ns) const {
    auto op = std::make_shared<Op>();
    op->label = label;
    op->stream = stream;
    op->device = device;
    op->not_before_ns = clock_ns;
    return op;
  }

  void release(const Allocation& allocation) {
    freeing.erase(allocation.address);
    if (allocation.kind == MemoryKind::kManaged) {
      machine.residency.remove(allocation);
      machine.memory.release(allocation.address);
      return;
    }
    const int device = allocation.device;
    const std::uint64_t held = machine.memory.chunks_held(device);
    machine.memory.release(allocation.address);
    machine.residency.return_device_chunks(device, held - machine.memory.chunks_held(device));
  }

  [[nodiscard]] const Allocation* find_live(std::uint64_t address) const {
    const Allocation* allocation = machine.memory.find(address);
    const bool is_start = allocation != nullptr && allocation->address == address;
    return is_start && !freeing.contains(address) ? allocation : nullptr;
  }
};

namespace {

enum class CallKind { kImmediate, kEnqueueOnly };

}  // namespace

/// One call of the model, from its entry to its end: lock, virtual cost, turn.
class Model::Call {
 public:
  Call(Impl& impl, TimeNs cost_ns, CallKind kind = CallKind::kImmediate)
      : impl_(&impl), lock_(impl.mutex), agent_(impl.current_agent()), self_(impl.agents.find(agent_)) {
    self_->clock_ns = std::max(self_->clock_ns, impl.engine.now()) + cost_ns;
    // Adding an operation needs no settled state: it must not wait for guest code that another thread runs.
    if (kind == CallKind::kEnqueueOnly && agent_ == kGuest && impl.is_stepping) return;
    impl.settle(lock_, agent_, self_->clock_ns);
  }
  ~Call() {
    impl_->satisfy_waiters();
    impl_->announce();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  [[nodiscard]] TimeNs now() const { return self_->clock_ns; }
  [[nodiscard]] AgentId agent() const { return agent_; }
  void wait(std::function<bool()> condition) { impl_->wait(lock_, agent_, std::move(condition)); }
  void spend_until(TimeNs time_ns) {
    self_->clock_ns = std::max(self_->clock_ns, time_ns);
    impl_->settle(lock_, agent_, self_->clock_ns);
  }

 private:
  Impl* impl_;
  Impl::Lock lock_;
  AgentId agent_;
  Agents::Agent* self_;
};

Model::Model(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Model::~Model() = default;

const Profile& Model::profile() const { return impl_->options.profile; }
int Model::device_count() const { return impl_->options.device_count; }
bool Model::in_body() { return t_in_body; }

Status Model::device_status(int device) const {
  const Impl::Lock lock(impl_->mutex);
  return impl_->is_device(device) ? impl_->machine.status_of(device) : Status::kInvalidValue;
}

// ---- memory
// ----------------------------------------------------------------------------------------------------------

Status Model::allocate_device(int device, std::uint64_t bytes, std::uint64_t* address) {
  if (t_in_body) return Status::kNotPermitted;
  Call call(*impl_, profile().alloc_host_ns);
  if (!impl_->is_device(device) || bytes == 0) return Status::kInvalidValue;
  Machine& machine = impl_->machine;
  if (machine.status_of(device) != Status::kOk) return machine.status_of(device);
  const std::uint64_t held = machine.memory.chunks_held(device);
  const auto place = machine.memory.allocate(MemoryKind::kDevice, device, bytes);
  if (!place) return Status::kOutOfMemory;
  const Move move = machine.residency.take_device_chunks(device, machine.memory.chunks_held(device) - held, call.now());
  if (move.status != Status::kOk) {
    machine.memory.release(*place);
    return move.status;
  }
  *address = *place;
  call.spend_until(move.ready_at_ns);
  return Status::kOk;
}

Status Model::allocate_managed(int device, std::uint64_t bytes, std::uint64_t* address) {
  if (t_in_body) return Status::kNotPermitted;
  const Call call(*impl_, profile().alloc_host_ns);
  if (!impl_->is_device(device) || bytes == 0) return Status::kInvalidValue;
  Machine& machine = impl_->machine;
  if (machine.status_of(device) != Status::kOk) return machine.status_of(device);
  const auto place = machine.memory.allocate(MemoryKind::kManaged, device, bytes);
  if (!place) return Status::kOutOfMemory;
  machine.residency.add(*machine.memory.find(*place));
  *address = *place;
  return Status::kOk;
}

Status Model::free_memory(std::uint64_t address) {
  if (t_in_body) return Status::kNotPermitted;
  Call call(*impl_, profile().alloc_host_ns);
  const Allocation* allocation = impl_->find_live(address);
  if (allocation == nullptr) return Status::kInvalidValue;
  std::vector<OpPtr> before;
  for (int device = 0; device < device_count(); ++device) {
    if (allocation->kind == MemoryKind::kDevice && allocation->device != device) continue;
    const std::vector<OpPtr> tails = impl_->engine.device_tails(device);
    before.insert(before.end(), tails.begin(), tails.end());
  }
  call.wait([&] { return all_done(before); });
  allocation = impl_->find_live(address);
  if (allocation == nullptr) return Status::kInvalidValue;  // another thread freed it meanwhile
  impl_->release(Allocation(*allocation));
  return Status::kOk;
}

Status Model::free_async(StreamId stream, std::uint64_t address) {
  return enqueue("free", stream, [&](Op& op) {
    if (impl_->find_live(address) == nullptr) return Status::kInvalidValue;
    impl_->freeing.insert(address);
    op.effect = [impl = impl_.get(), address](TimeNs) {
      impl->release(Allocation(*impl->machine.memory.find(address)));
    };
    return Status::kOk;
  });
}

std::optional<Allocation> Model::find_allocation(std::uint64_t address) const {
  const Impl::Lock lock(impl_->mutex);
  const Allocation* allocation = impl_->machine.memory.find(address);
  return allocation == nullptr ? std::nullopt : std::optional(*allocation);
}

Status Model::mem_info(int device, MemInfo* info) {
  if (t_in_body) return Status::kNotPermitted;
  const Call call(*impl_, profile().call_host_ns);
  if (!impl_->is_device(device)) return Status::kInvalidValue;
  info->free_bytes = impl_->machine.residency.free_chunks(device) * kBlockBytes;
  info->total_bytes = impl_->machine.residency.total_chunks() * kBlockBytes;
  return impl_->machine.status_of(device);
}

// ---- managed memory
// --------------------------------------------------------------------------------------------------

Status Model::advise(Range range, Advice advice, Location where) {
  if (t_in_body) return Status::kNotPermitted;
  Call call(*impl_, profile().advise_call_ns);
  const bool takes_location =
      advice == Advice::kSetPreferredLocation || advice == Advice::kSetAccessedBy || advice == Advice::kUnsetAccessedBy;
  const bool is_location = where == kHost || impl_->is_device(where);
  if (!impl_->is_managed(range) || (takes_location && !is_location)) return Status::kInvalidValue;
  const std::uint64_t end = range.address + range.bytes;
  const std::uint64_t first = range.address / kBlockBytes * kBlockBytes;
  const auto blocks = static_cast<TimeNs>((end - first + kBlockBytes - 1) / kBlockBytes);
  call.spend_until(call.now() + blocks * profile().advise_block_ns);
  for (std::uint64_t address = first; address < end; address += kBlockBytes) {
    Block* block = impl_->machine.residency.find(address);
    if (block == nullptr) return Status::kInvalidValue;  // freed by another thread meanwhile
    // A policy on a part of a block splits its VA range: two small blocks, which the driver's lists ignore (uvm.md B1,
    // B9).
    if (block->inside(range) != block->all) block->is_small = true;
    impl_->machine.residency.advise(*block, advice, where);
  }
  return Status::kOk;
}

Status Model::prefetch(StreamId stream, Range range, Location destination) {
  if (destination != kHost && !impl_->is_device(destination)) return Status::kInvalidValue;
  return migrate(stream, range, destination == kHost ? MigrationKind::kDemote : MigrationKind::kPrefetch, destination);
}

Status Model::discard(StreamId stream, Range range) {
  return migrate(stream, range, MigrationKind::kDiscard, kNowhere);
}

Status Model::migrate(StreamId stream, Range range, MigrationKind kind, Location destination) {
  if (t_in_body) return Status::kNotPermitted;
  Call call(*impl_, profile().prefetch_call_ns);
  Engine& engine = impl_->engine;
  const auto device = engine.device_of(stream);
  if (!device) return Status::kInvalidHandle;
  if (!impl_->is_managed(range)) return Status::kInvalidValue;
  if (impl_->machine.status_of(*device) != Status::kOk) return impl_->machine.status_of(*device);

  const OpPtr op = impl_->new_op("migration", stream, *device, call.now());
  auto work = std::make_unique<MigrationWork>(impl_->machine, kind, destination >= 0 ? destination : *device, range);
  if (!engine.blockers_of(stream).empty()) {
    op->work = std::move(work);
    op->resource = &engine.deferred_worker();
    engine.enqueue(op);
    return Status::kOk;
  }
  // On an idle stream the ioctl runs in the caller (hardware_truths 5).
  op->is_held_by_caller = true;
  engine.enqueue(op);
  while (const auto next = work->step(call.now())) call.spend_until(*next);
  engine.finish_held(op, work->completes_at(call.now()));
  return work->status();
}

Status Model::host_access(Access access) {
  if (t_in_body) return Status::kNotPermitted;
  Call call(*impl_, profile().call_host_ns);
  if (!impl_->is_managed({access.address, access.bytes})) return Status::kInvalidValue;
  Residency& residency = impl_->machine.residency;
  const int counting_device = impl_->machine.memory.find(access.address)->device;
  const std::uint64_t end = access.address + access.bytes;
  for (std::uint64_t address = access.address; address < end;) {
    Block* block = residency.find(address);
    if (block == nullptr) return Status::kInvalidValue;  // freed by another thread meanwhile
    const RegionMask regions = block->overlapping({access.address, access.bytes});
    residency.use_discarded(*block, counting_device, regions, access.kind);
    RegionMask faulting = regions & ~block->on_host;
    if (access.kind != AccessKind::kRead) {
      for (const BlockOnDevice& on : block->devices) faulting |= regions & on.resident;
    }
    if (faulting != 0) {
      const bool keeps_duplicates = block->is_read_mostly && access.kind == AccessKind::kRead;
      const TimeNs fault_ns = profile().cpu_fault_block_ns;
      const Move move =
          residency.move_to_host(*block, faulting, keeps_duplicates, Cause::kCoherence, call.now() + fault_ns);
      if (move.status != Status::kOk) return move.status;
      address = block->address + block->bytes;
      call.spend_until(move.ready_at_ns);
    } else {
      address = block->address + block->bytes;
    }
  }
  return Status::kOk;
}

std::optional<BlockState> Model::block_state(std::uint64_t address) {
  const Impl::Lock lock(impl_->mutex);
  const Block* block = impl_->machine.residency.find(address);
  if (block == nullptr) return std::nullopt;
  BlockState state;
  state.on_host = block->on_host != 0;
  state.is_populated = block->populated != 0;
  RegionMask resident = block->on_host;
  for (const BlockOnDevice& on : block->devices) {
    state.on_device.push_back(on.resident != 0);
    state.has_chunk.push_back(on.has_chunk);
    state.regions.push_back(on.resident);
    state.accessed_by.push_back(on.is_accessed_by);
    resident |= on.resident;
  }
  state.is_discarded = resident != 0 && (resident & ~block->discarded) == 0;
  state.is_read_mostly = block->is_read_mostly;
  state.preferred = block->preferred;
  state.last_prefetch = block->last_prefetch;
  return state;
}

// ---- streams and events
// ----------------------------------------------------------------------------------------------

Status Model::create_stream(int device, StreamKind kind, StreamId* stream) {
  if (t_in_body) return Status::kNotPermitted;
  const Call call(*impl_, profile().call_host_ns);
  if (!impl_->is_device(device)) return Status::kInvalidValue;
  *stream = impl_->engine.create_stream(device, kind);
  return impl_->machine.status_of(device);
}

Status Model::destroy_stream(StreamId stream) {
  if (t_in_body) return Status::kNotPermitted;
  const Call call(*impl_, profile().call_host_ns);
  if (!impl_->engine.device_of(stream) || impl_->engine.is_legacy(stream)) return Status::kInvalidHandle;
  for (const auto& [key, own] : impl_->per_thread_streams) {
    if (own == stream) return Status::kInvalidHandle;
  }
  impl_->engine.destroy_stream(stream);
  return Status::kOk;
}

StreamId Model::legacy_stream(int device) const { return impl_->engine.legacy_stream(device); }

StreamId Model::per_thread_stream(int device) {
  const Impl::Lock lock(impl_->mutex);
  const auto [it, is_new] = impl_->per_thread_streams.try_emplace({std::this_thread::get_id(), device}, 0);
  if (is_new) it->second = impl_->engine.create_stream(device, StreamKind::kBlocking);
  return it->second;
}

Status Model::stream_device(StreamId stream, int* device) const {
  const Impl::Lock lock(impl_->mutex);
  const auto found = impl_->engine.device_of(stream);
  if (!found) return Status::kInvalidHandle;
  *device = *found;
  return Status::kOk;
}

Status Model::synchronize_stream(StreamId stream) {
  if (t_in_body) return Status::kNotPermitted;
  Call call(*impl_, profile().call_host_ns);
  const auto device = impl_->engine.device_of(stream);
  if (!device) return Status::kInvalidHandle;
  // The legacy stream stands for all blocking ones.
  const std::vector<OpPtr> before =
      impl_->engine.is_legacy(stream) ? impl_->engine.blockers_of(stream) : impl_->engine.tails(stream);
  call.wait([&] { return all_done(before); });
  return impl_->machine.status_of(*device);
}

Status Model::query_stream(StreamId stream) {
  if (t_in_body) return Status::kNotPermitted;
  const Call call(*impl_, profile().call_host_ns);
  const auto device = impl_->engine.device_of(stream);
  if (!device) return Status::kInvalidHandle;
  if (impl_->machine.status_of(*device) != Status::kOk) return impl_->machine.status_of(*device);
  const bool is_idle =
      impl_->engine.is_legacy(stream) ? impl_->engine.blockers_of(stream).empty() : impl_->engine.tails(stream).empty();
  return is_idle ? Status::kOk : Status::kNotReady;
}

Status Model::synchronize_device(int device) {
  if (t_in_body) return Status::kNotPermitted;
  Call call(*impl_, profile().call_host_ns);
  if (!impl_->is_device(device)) return Status::kInvalidValue;
  const std::vector<OpPtr> before = impl_->engine.device_tails(device);
  call.wait([&] { return all_done(before); });
  return impl_->machine.status_of(device);
}

Status Model::create_event(int device, EventId* event) {
  if (t_in_body) return Status::kNotPermitted;
  const Call call(*impl_, profile().call_host_ns);
  if (!impl_->is_device(device)) return Status::kInvalidValue;
  *event = impl_->next_event++;
  impl_->events.emplace(*event, Impl::Event{.device = device, .record = nullptr});
  return impl_->machine.status_of(device);
}

Status Model::destroy_event(EventId event) {
  if (t_in_body) return Status::kNotPermitted;
  const Call call(*impl_, profile().call_host_ns);
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
  if (t_in_body) return Status::kNotPermitted;
  Call call(*impl_, profile().call_host_ns);
  const auto it = impl_->events.find(event);
  if (it == impl_->events.end()) return Status::kInvalidHandle;
  const int device = it->second.device;
  if (const OpPtr record = it->second.record) call.wait([&] { return record->is_done; });
  return impl_->machine.status_of(device);
}

Status Model::query_event(EventId event) {
  if (t_in_body) return Status::kNotPermitted;
  const Call call(*impl_, profile().call_host_ns);
  const auto it = impl_->events.find(event);
  if (it == impl_->events.end()) return Status::kInvalidHandle;
  const Impl::Event& found = it->second;
  if (impl_->machine.status_of(found.device) != Status::kOk) return impl_->machine.status_of(found.device);
  return found.record == nullptr || found.record->is_done ? Status::kOk : Status::kNotReady;
}

Status Model::event_elapsed(EventId start, EventId end, TimeNs* elapsed_ns) {
  if (t_in_body) return Status::kNotPermitted;
  const Call call(*impl_, profile().call_host_ns);
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

// ---- operations
// ------------------------------------------------------------------------------------------------------

template <typename Prepare>
Status Model::enqueue(const char* label, StreamId stream, Prepare prepare, const OpPtr* also_after) {
  if (t_in_body) return Status::kNotPermitted;
  Call call(*impl_, profile().launch_host_ns, CallKind::kEnqueueOnly);
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

// ---- agents
// ----------------------------------------------------------------------------------------------------------

TimeNs Model::now() const {
  const Impl::Lock lock(impl_->mutex);
  return impl_->agents.find(impl_->current_agent())->clock_ns;
}

void Model::sleep_until(TimeNs time_ns) {
  if (t_in_body) return;
  Call call(*impl_, 0);
  if (time_ns <= call.now()) return;
  impl_->engine.at(time_ns, [] {});  // time stops there, so the sleeper acts before anything later
  call.wait([&] { return impl_->engine.now() >= time_ns; });
}

AgentId Model::register_agent(const std::string& name) {
  const Call call(*impl_, profile().call_host_ns);
  return impl_->agents.add(name, call.now());
}

Status Model::attach_agent(AgentId agent) {
  const Impl::Lock lock(impl_->mutex);
  if (agent == kGuest || impl_->agents.find(agent) == nullptr) return Status::kInvalidHandle;
  t_agent = {impl_.get(), agent};
  return Status::kOk;
}

void Model::detach_agent() {
  const Impl::Lock lock(impl_->mutex);
  const AgentId agent = impl_->current_agent();
  if (agent == kGuest) return;
  impl_->agents.remove(agent);
  t_agent = {};
  impl_->announce();
}

void Model::idle() {
  if (t_in_body) return;
  Call call(*impl_, 0);
  Agents::Agent* self = impl_->agents.find(call.agent());
  call.wait([=] { return self->is_woken; });
  self->is_woken = false;
}

Status Model::wake_agent(AgentId agent) {
  if (t_in_body) return Status::kNotPermitted;
  const Call call(*impl_, profile().call_host_ns);
  Agents::Agent* other = impl_->agents.find(agent);
  if (other == nullptr) return Status::kInvalidHandle;
  other->is_woken = true;
  return Status::kOk;
}

void Model::begin_external_wait() {
  const Impl::Lock lock(impl_->mutex);
  ++impl_->agents.find(impl_->current_agent())->waiting;
  impl_->announce();
}

void Model::end_external_wait() {
  const Impl::Lock lock(impl_->mutex);
  Agents::Agent* self = impl_->agents.find(impl_->current_agent());
  --self->waiting;
  self->clock_ns = std::max(self->clock_ns, impl_->engine.now());
}

std::string Model::describe() const {
  const Impl::Lock lock(impl_->mutex);
  return impl_->describe();
}

Stats Model::stats() const {
  const Impl::Lock lock(impl_->mutex);
  Stats stats;
  Residency& residency = impl_->machine.residency;
  for (int device = 0; device < device_count(); ++device) stats.devices.push_back(residency.stats(device));
  stats.host_managed_bytes = residency.host_bytes();
  stats.peak_host_managed_bytes = residency.peak_host_bytes();
  stats.live_allocations = impl_->machine.memory.live_allocations();
  stats.now_ns = impl_->agents.find(impl_->current_agent())->clock_ns;
  return stats;
}

}  // namespace hmshim::simgpu
