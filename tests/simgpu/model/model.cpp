#include "tests/simgpu/model/model.hpp"

#include <cstring>
#include <stdexcept>

#include "tests/simgpu/model/model_impl.hpp"

namespace hmshim::simgpu {
namespace {

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
  static constexpr std::array<const char*, kCauseCount> kNames = {"user", "coherence", "demand",         "eviction",
                                                                  "copy", "remote",    "access counters"};
  return kNames[static_cast<std::size_t>(cause)];
}

Model::Impl::Impl(Options the_options) : options(checked(std::move(the_options))), simulation(options) {}

Model::Model(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Model::~Model() = default;

const Profile& Model::profile() const { return impl_->options.profile; }
int Model::device_count() const { return impl_->options.device_count; }
bool Model::in_body() { return Simulation::in_body(); }

Status Model::device_status(int device) const {
  const auto lock = impl_->simulation.lock();
  return impl_->is_device(device) ? impl_->machine.status_of(device) : Status::kInvalidValue;
}

// ---- agents ---------------------------------------------------------------------------------------------------------

TimeNs Model::now() const {
  const auto lock = impl_->simulation.lock();
  return impl_->simulation.agents.find(impl_->simulation.current_agent())->clock_ns;
}

void Model::sleep_until(TimeNs time_ns) {
  if (in_body()) return;
  Call call(impl_->simulation, 0);
  if (time_ns <= call.now()) return;
  impl_->engine.at(time_ns, [] {});  // time stops there, so the sleeper acts before anything later
  call.wait([&] { return impl_->engine.now() >= time_ns; });
}

AgentId Model::register_agent(const std::string& name) {
  const Call call(impl_->simulation, profile().call_host_ns);
  return impl_->simulation.agents.add(name, call.now());
}

Status Model::attach_agent(AgentId agent) {
  const auto lock = impl_->simulation.lock();
  if (agent == kGuest || impl_->simulation.agents.find(agent) == nullptr) return Status::kInvalidHandle;
  impl_->simulation.become(agent);
  return Status::kOk;
}

void Model::detach_agent() {
  const auto lock = impl_->simulation.lock();
  const AgentId agent = impl_->simulation.current_agent();
  if (agent == kGuest) return;
  impl_->simulation.agents.remove(agent);
  impl_->simulation.become(kGuest);
  impl_->simulation.announce();
}

void Model::idle() {
  if (in_body()) return;
  Call call(impl_->simulation, 0);
  call.wait([&] { return call.self().is_woken; });
  call.self().is_woken = false;
}

void Model::watch(const void* memory, const void* seen, std::size_t bytes, TimeNs deadline_ns) {
  if (in_body()) return;
  Call call(impl_->simulation, 0);
  if (deadline_ns > call.now()) impl_->engine.at(deadline_ns, [] {});
  Agents::Agent& self = call.self();
  call.wait([&, this] {
    return self.is_woken || (bytes != 0 && std::memcmp(memory, seen, bytes) != 0) ||
           (deadline_ns != 0 && impl_->engine.now() >= deadline_ns);
  });
  self.is_woken = false;
}

void Model::take_turn() { sleep_until(now() + static_cast<TimeNs>(impl_->simulation.current_agent())); }

Status Model::wake_agent(AgentId agent) {
  if (in_body()) return Status::kNotPermitted;
  const Call call(impl_->simulation, profile().call_host_ns);
  Agents::Agent* other = impl_->simulation.agents.find(agent);
  if (other == nullptr) return Status::kInvalidHandle;
  other->is_woken = true;
  return Status::kOk;
}

void Model::begin_external_wait() {
  const auto lock = impl_->simulation.lock();
  ++impl_->simulation.agents.find(impl_->simulation.current_agent())->waiting;
  impl_->simulation.announce();
}

void Model::end_external_wait() {
  const auto lock = impl_->simulation.lock();
  Agents::Agent* self = impl_->simulation.agents.find(impl_->simulation.current_agent());
  --self->waiting;
  self->clock_ns = std::max(self->clock_ns, impl_->engine.now());
}

std::string Model::describe() const {
  const auto lock = impl_->simulation.lock();
  return impl_->simulation.describe();
}

Stats Model::stats() const {
  const auto lock = impl_->simulation.lock();
  Stats stats;
  Residency& residency = impl_->machine.residency;
  for (int device = 0; device < device_count(); ++device) stats.devices.push_back(residency.stats(device));
  stats.host_managed_bytes = residency.host_bytes();
  stats.peak_host_managed_bytes = residency.peak_host_bytes();
  stats.live_allocations = impl_->machine.memory.live_allocations();
  stats.now_ns = impl_->simulation.agents.find(impl_->simulation.current_agent())->clock_ns;
  return stats;
}

}  // namespace hmshim::simgpu
