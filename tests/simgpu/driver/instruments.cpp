#include "tests/simgpu/driver/instruments.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tests/simgpu/driver/driver.hpp"
#include "tests/simgpu/driver/errors.hpp"
#include "tests/simgpu/driver/graph.hpp"
#include "tests/simgpu/driver/work.hpp"

namespace hmshim::simgpu {

std::atomic<bool> is_instrumented{false};

namespace {

constexpr const char* kCallNames[] = {
#define SIMGPU_ENTRY(base, since, flavour, symbol) #symbol,
#include "tests/simgpu/driver/entries.def"
#undef SIMGPU_ENTRY
};
constexpr std::size_t kCallCount = static_cast<std::size_t>(Call::Count);
static_assert(std::size(kCallNames) == kCallCount);

struct ArmedFailure {
  std::optional<Call> call;  // nothing: any
  std::uint64_t ordinal;
  CUresult error;
};

struct Instruments {
  std::mutex mutex;
  std::vector<ArmedFailure> failures;
  std::array<std::uint64_t, kCallCount> counts{};
  std::uint64_t total = 0;
  std::FILE* log = nullptr;
};

// Never destroyed, like the driver.
Instruments& instruments() {
  static auto* const made = new Instruments;
  return *made;
}

std::uint64_t h2d(const DeviceStats& device, Cause cause) { return device.h2d_bytes[static_cast<std::size_t>(cause)]; }
std::uint64_t d2h(const DeviceStats& device, Cause cause) { return device.d2h_bytes[static_cast<std::size_t>(cause)]; }

simgpu_stats collect() {
  simgpu_stats figures{};
  if (!is_ready()) return figures;
  Driver& state = driver();
  const Stats stats = state.model->stats();
  figures.live_allocations = stats.live_allocations;
  {
    const std::lock_guard lock(state.mutex);
    for (const auto& [address, memory] : state.memory) {
      figures.live_host_allocations += memory.origin == MemoryOrigin::Host || memory.origin == MemoryOrigin::Registered;
    }
  }
  figures.live_streams = state.streams.live();
  figures.live_events = state.events.live();
  figures.live_contexts = state.contexts.live();
  figures.live_modules = state.libraries.live() +
                         state.modules.select([](const Module& module) { return module.library == nullptr; }).size();
  figures.live_graphs = live_graphs();
  for (const DeviceStats& device : stats.devices) {
    figures.kernels += device.kernels;
    figures.h2d_user_bytes += h2d(device, Cause::kUser);
    figures.h2d_coherence_bytes += h2d(device, Cause::kCoherence);
    figures.h2d_demand_bytes += h2d(device, Cause::kDemand) + h2d(device, Cause::kAccessCounters);
    figures.h2d_copy_bytes += h2d(device, Cause::kCopy);
    figures.h2d_remote_bytes += h2d(device, Cause::kRemote);
    figures.d2h_user_bytes += d2h(device, Cause::kUser);
    figures.d2h_coherence_bytes += d2h(device, Cause::kCoherence);
    figures.d2h_eviction_bytes += d2h(device, Cause::kEviction);
    figures.d2h_copy_bytes += d2h(device, Cause::kCopy);
    figures.d2h_remote_bytes += d2h(device, Cause::kRemote);
    figures.resident_bytes += device.resident_bytes;
    figures.peak_resident_bytes += device.peak_resident_bytes;
    figures.fault_groups += device.fault_groups;
    figures.evicted_blocks += device.evicted_blocks;
    figures.discarded_bytes += device.discarded_bytes;
    figures.dropped_bytes += device.dropped_bytes;
    figures.writes_after_discard += device.writes_after_discard;
    figures.reads_after_discard += device.reads_after_discard;
    figures.kernel_busy_ns += static_cast<std::uint64_t>(device.kernel_busy_ns);
    figures.stall_ns += static_cast<std::uint64_t>(device.stall_ns);
  }
  figures.now_ns = static_cast<std::uint64_t>(stats.now_ns);
  const std::lock_guard lock(instruments().mutex);
  figures.calls = instruments().total;
  return figures;
}

// The last line of the log. Runs after the guest's exit handlers, because the guest loaded before this library's
// destructor was registered.
__attribute__((destructor)) void close_log() {
  if (!is_ready() || instruments().log == nullptr) return;
  const simgpu_stats figures = collect();
  std::FILE* log = instruments().log;
  std::fprintf(log, R"({"t":"end")");
#define SIMGPU_FIGURE(name) std::fprintf(log, ",\"" #name "\":%llu", static_cast<unsigned long long>(figures.name));
  SIMGPU_FIGURES(SIMGPU_FIGURE)
#undef SIMGPU_FIGURE
  std::fprintf(log, "}\n");
  std::fclose(log);
  instruments().log = nullptr;
}

}  // namespace

void start_instruments(const DriverOptions& options) {
  Instruments& state = instruments();
  const std::lock_guard lock(state.mutex);
  if (!options.log_path.empty()) {
    state.log = std::fopen(options.log_path.c_str(), "we");
    if (state.log == nullptr) throw OptionError("SIMGPU_LOG=" + options.log_path + ": " + std::strerror(errno));
  }
  for (const Failure& failure : options.failures) {
    std::optional<Call> call;
    for (std::size_t i = 0; i < kCallCount; ++i) {
      if (failure.symbol == kCallNames[i]) call = static_cast<Call>(i);
    }
    state.failures.push_back({call, failure.ordinal, static_cast<CUresult>(failure.error)});
  }
  is_instrumented.store(state.log != nullptr || !state.failures.empty(), std::memory_order_relaxed);
}

std::optional<CUresult> injected_failure(Call call) {
  Instruments& state = instruments();
  const std::lock_guard lock(state.mutex);
  const std::uint64_t ordinal = ++state.counts[static_cast<std::size_t>(call)];
  ++state.total;
  for (const ArmedFailure& failure : state.failures) {
    if (failure.ordinal == (failure.call ? ordinal : state.total) && failure.call.value_or(call) == call) {
      return failure.error;
    }
  }
  return std::nullopt;
}

void log_call(Call call, CUresult result) {
  Instruments& state = instruments();
  if (!is_ready()) return;
  const TimeNs now_ns = Model::in_body() ? 0 : driver().model->now();
  const std::lock_guard lock(state.mutex);
  if (state.log == nullptr) return;
  std::fprintf(state.log, "{\"t\":\"call\",\"call\":\"%s\",\"result\":%d,\"now_ns\":%lld}\n",
               kCallNames[static_cast<std::size_t>(call)], result, static_cast<long long>(now_ns));
}

}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

__attribute__((visibility("default"))) void simgpu_get_stats(simgpu_stats* stats) { *stats = collect(); }

__attribute__((visibility("default"))) unsigned long long simgpu_now_ns(void) {
  return is_ready() ? static_cast<unsigned long long>(driver().model->now()) : 0;
}

__attribute__((visibility("default"))) void simgpu_sleep_ns(unsigned long long ns) {
  if (is_ready()) driver().model->sleep_until(driver().model->now() + static_cast<TimeNs>(ns));
}

__attribute__((visibility("default"))) void simgpu_host_access(uint64_t address, size_t bytes, int kind) {
  if (!is_ready()) return;
  // Elsewhere than in managed memory the model has nothing to tell: the address is the caller's.
  static_cast<void>(driver().model->host_access({address, bytes, access_kind(kind)}));
}

__attribute__((visibility("default"))) unsigned long long simgpu_host_available_bytes(void) {
  if (!is_ready()) return 0;
  const Model& model = *driver().model;
  return model.profile().host_ram_bytes - model.stats().host_managed_bytes;
}

__attribute__((visibility("default"))) void simgpu_foretell(unsigned long long* last_launch_ns, double* h2d_bytes_per_s,
                                                            double* d2h_bytes_per_s) {
  *last_launch_ns = last_kernel_ns();
  *h2d_bytes_per_s = is_ready() ? driver().model->profile().link_h2d_gbps * 1e9 : 0;
  *d2h_bytes_per_s = is_ready() ? driver().model->profile().link_d2h_gbps * 1e9 : 0;
}

}  // extern "C"
