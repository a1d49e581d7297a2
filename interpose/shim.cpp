#include "interpose/shim.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "interpose/handlers.hpp"
#include "interpose/hook_counts.hpp"
#include "interpose/in_shim.hpp"
#include "interpose/log.hpp"
#include "interpose/pattern_file.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/unseen.hpp"
#include "uvm/migration_pause.hpp"

namespace hmshim::interpose {

namespace {

// Of HMSHIM_REPORT, HMSHIM_TRACE or HMSHIM_PROFILE. Absolute: the program may go to another folder before the file is
// written.
std::string output_path(const std::string& pattern) {
  if (pattern.empty()) return "";
  const std::string path = expand_path(pattern, getpid(), rank_of(environ));
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

double gib(std::uint64_t bytes) noexcept { return static_cast<double>(bytes) / (1U << 30U); }

bool has_budget(const Config& config) noexcept { return config.device_budget.value != kNoLimit; }

std::vector<Device> judge_devices(const uvm::DriverApi& driver, const Config& config) {
  int count = 0;
  if (driver.cuDeviceGetCount(&count) != CUDA_SUCCESS) count = 0;
  std::vector<Device> devices(
      static_cast<std::size_t>(std::clamp(count, 0, static_cast<int>(uvm::AllocationTable::kMaxDevices))));
  for (std::size_t ordinal = 0; ordinal < devices.size(); ++ordinal) {
    Device& device = devices[ordinal];
    device.capabilities = uvm::judge(uvm::collect_facts(driver, static_cast<int>(ordinal)));
    std::size_t total_bytes = 0;
    if (driver.cuDeviceTotalMem_v2(&total_bytes, static_cast<CUdevice>(ordinal)) == CUDA_SUCCESS)
      device.total_bytes = total_bytes;
    device.budget_bytes = has_budget(config) ? std::min(config.device_budget.of(device.total_bytes), device.total_bytes)
                                             : device.total_bytes - device.total_bytes / 10;
  }
  return devices;
}

// A budget of the user's own is all that the device promises: what exceeds it must fit the host. Without one the whole
// device is promised.
std::vector<uvm::DeviceShare> shares_of(const Config& config, const std::vector<Device>& devices) {
  std::vector<uvm::DeviceShare> shares;
  for (const Device& device : devices) {
    shares.push_back({device.total_bytes, has_budget(config) ? std::optional(device.budget_bytes) : std::nullopt});
  }
  return shares;
}

std::vector<std::uint64_t> budgets_of(const std::vector<Device>& devices) {
  std::vector<std::uint64_t> budgets_bytes;
  for (const Device& device : devices) budgets_bytes.push_back(device.budget_bytes);
  return budgets_bytes;
}

// A percentage of the managed limit is one of all devices' memory together.
uvm::BudgetLimits limits_of(const Config& config, const std::vector<Device>& devices) {
  std::uint64_t total_bytes = 0;
  for (const Device& device : devices) total_bytes += device.total_bytes;
  return {.managed_bytes = config.managed_limit.of(total_bytes), .host_bytes = config.host_limit};
}

uvm::HostMemory host_memory_of(const uvm::DriverApi& driver) {
  return driver.simgpu_host_available_bytes != nullptr ? uvm::HostMemory(driver.simgpu_host_available_bytes)
                                                       : uvm::HostMemory();
}

// What keeps the library from managing memory.
struct Obstacle {
  Reason reason;
  std::string why;
};

// Fills `driver` and `devices` on the way; nothing when the gate may open.
std::optional<Obstacle> find_obstacle(const Config& config, uvm::DriverApi& driver, std::vector<Device>& devices) {
  if (!config.errors.empty()) return Obstacle{Reason::invalid_option, "an option has a value that cannot be right"};
  if (config.policy == "off") return Obstacle{Reason::disabled, "the policy is off"};
  if (const auto missing = first_missing_required(real())) {
    return Obstacle{Reason::driver_lacks_function, fmt::format("the driver has no {}", to_string(*missing))};
  }
  if (const auto missing = uvm::resolve(driver, real_symbol); !missing.empty()) {
    return Obstacle{Reason::driver_lacks_function, fmt::format("the driver has no {}", missing)};
  }
  devices = judge_devices(driver, config);
  if (devices.empty()) return Obstacle{Reason::unsupported_device, "there is no device"};
  const auto can_manage = [](const Device& device) { return device.capabilities.can_manage(); };
  if (std::none_of(devices.begin(), devices.end(), can_manage)) {
    return Obstacle{Reason::unsupported_device, devices.front().capabilities.sentence};
  }
  return std::nullopt;
}

// Nothing will be managed: says why, in the report too where one was asked for. What the user asked for, or was told of
// as an error already, is no news.
void stand_down(const Config& config, const Obstacle& obstacle) {
  const bool is_news = obstacle.reason != Reason::disabled && obstacle.reason != Reason::invalid_option;
  log(is_news ? LogLevel::Warn : LogLevel::Info, [&] { return fmt::format("not managing memory: {}", obstacle.why); });
  gate().pass_through(obstacle.reason);
  Report report(output_path(config.report), config.summary, getpid());
  StartRecord start;
  start.policy = config.policy;
  start.capabilities = obstacle.why;
  report.start(start);
  ExitRecord exit;
  exit.policy = config.policy;
  exit.gate = gate().state();
  exit.gate_reason = gate().reason();
  report.finish(exit);
}

}  // namespace

void AllocationCounter::add(std::uint64_t bytes) noexcept {
  count_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  const std::uint64_t live_bytes = live_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::uint64_t peak_bytes = peak_bytes_.load(std::memory_order_relaxed);
  while (peak_bytes < live_bytes &&
         !peak_bytes_.compare_exchange_weak(peak_bytes, live_bytes, std::memory_order_relaxed)) {
  }
}

AllocationTally AllocationCounter::tally() const noexcept {
  return {count_.load(std::memory_order_relaxed), bytes_.load(std::memory_order_relaxed),
          peak_bytes_.load(std::memory_order_relaxed)};
}

Shim::Shim(Config config_read, const uvm::DriverApi& driver_resolved, std::vector<Device> devices_judged)
    : config(std::move(config_read)),
      driver(driver_resolved),
      devices(std::move(devices_judged)),
      budget(shares_of(config, devices), limits_of(config, devices), host_memory_of(driver)),
      report(output_path(config.report), config.summary, getpid()),
      trace(driver, captures, output_path(config.trace), program_invocation_short_name),
      engines(driver, migrator, report, config.policy, budgets_of(devices), config.discard),
      profile_path_(config.policy == "learned" ? output_path(config.profile) : "") {
  engines.discard_by(pools);
  read_profile();
}

void Shim::read_profile() {
  if (profile_path_.empty()) return;
  const PatternFile file = load_patterns(profile_path_);
  may_write_profile_ = file.is_ours;
  if (!file.refusal.empty()) {
    log(LogLevel::Warn, [&] {
      return fmt::format("HMSHIM_PROFILE={} is not used{}: {}", profile_path_, file.is_ours ? "" : " and left as it is",
                         file.refusal);
    });
  }
  engines.foresee(file.patterns);
}

// Where nothing has been learned, what is there stays.
void Shim::write_profile() {
  if (profile_path_.empty()) return;
  if (const std::string disproof = engines.disproof(); !disproof.empty())
    log(LogLevel::Warn, [&] { return fmt::format("HMSHIM_PROFILE={} does not match: {}", profile_path_, disproof); });
  const std::vector<LearnedPattern> patterns = engines.patterns();
  if (!may_write_profile_ || patterns.empty()) return;
  if (const std::string failure = save_patterns(profile_path_, patterns); !failure.empty())
    log(LogLevel::Warn,
        [&] { return fmt::format("HMSHIM_PROFILE={} could not be written: {}", profile_path_, failure); });
}

void Shim::start() noexcept {
  static std::once_flag once;
  // The exception stays inside: between it and here are frames of the C library, whose unwinder is not ours.
  contain([] { std::call_once(once, [] { contain(start_once); }); });
}

void Shim::start_once() {
  Config config = parse(environ);
  log_start(config.log_level);
  for (const std::string& warning : config.warnings) log(LogLevel::Warn, warning);
  if (config.disable) {
    gate().turn_off(Reason::disabled);
    return;
  }
  // A child shares nothing it could use: CUDA does not survive a fork, and file and stderr are the parent's.
  pthread_atfork([] { uvm::migration_pause.begin(instance_ != nullptr ? instance_->driver : uvm::DriverApi{}); },
                 [] { uvm::migration_pause.end(); },
                 [] {
                   gate().turn_off(Reason::forked_child);
                   log_forget_after_fork();
                   if (instance_ == nullptr) return;
                   instance_->report.forget_after_fork();
                   instance_->trace.forget_after_fork();
                 });
  for (const std::string& error : config.errors) log(LogLevel::Error, error);
  uvm::DriverApi driver;
  std::vector<Device> devices;
  if (const auto obstacle = find_obstacle(config, driver, devices)) {
    stand_down(config, *obstacle);
    return;
  }

  alignas(Shim) static unsigned char storage[sizeof(Shim)];
  instance_ = new (storage) Shim(std::move(config), driver, std::move(devices));
  std::atexit([] { instance_->finish(); });
  gate().activate();
}

void Shim::waited() noexcept {
  engines.settle();
  trace.waited();
}

void Shim::fit_budget(std::uint16_t ordinal) {
  Device& device = devices[ordinal];
  const std::uint64_t taken_bytes = std::min(budget.live_bytes(ordinal).device_backed, device.total_bytes);
  if (device.unevictable_bytes.exchange(taken_bytes, std::memory_order_relaxed) == taken_bytes) return;
  engines.set_budget(ordinal, std::min(device.budget_bytes, device.total_bytes - taken_bytes));
}

uvm::Result<Owner> Shim::current_owner() const noexcept {
  CUdevice device = 0;
  CUcontext context = nullptr;
  if (const CUresult code = driver.cuCtxGetDevice(&device); code != CUDA_SUCCESS)
    return uvm::Error{code, uvm::Reason::DriverRefused};
  if (const CUresult code = driver.cuCtxGetCurrent(&context); code != CUDA_SUCCESS)
    return uvm::Error{code, uvm::Reason::DriverRefused};
  return Owner{static_cast<std::uint16_t>(device), reinterpret_cast<std::uintptr_t>(context)};
}

bool Shim::exceeds_device(std::uint16_t ordinal, std::uint64_t bytes) const noexcept {
  const Device& device = devices[ordinal];
  return config.remote_access && device.capabilities.can_advise &&
         bytes > (has_budget(config) ? device.budget_bytes : device.total_bytes);
}

bool Shim::can_manage(CUdevice device) const noexcept {
  const auto ordinal = static_cast<std::size_t>(device);
  return ordinal < devices.size() && devices[ordinal].capabilities.can_manage();
}

std::optional<uvm::Allocation> Shim::find_ours(CUdeviceptr address) const noexcept {
  // Most managed addresses are told without a lock.
  if (allocations.find(address).extent != policy::kNoExtent) return allocations.lookup(address);
  const uvm::TensorPool* pool = pools.holder(address);
  if (pool == nullptr) {
    const auto other = allocations.lookup(address);
    return other && other->backing == uvm::Backing::Remote ? other : std::nullopt;
  }
  const auto tensor = pool->find(address);
  if (!tensor) return std::nullopt;
  return uvm::Allocation{.base = tensor->address,
                         .bytes = tensor->bytes,
                         .context = pool->config().context,
                         .device = pool->config().device,
                         .backing = uvm::Backing::Device};
}

bool Shim::is_freed(CUdeviceptr address) const noexcept {
  return (allocations.find(address).extent != policy::kNoExtent || pools.holder(address) != nullptr) &&
         !find_ours(address);
}

void Shim::report_device(std::uint16_t ordinal) noexcept {
  Device& device = devices[ordinal];
  if (device.is_reported.load(std::memory_order_relaxed) || device.is_reported.exchange(true)) return;
  log(LogLevel::Info, [&] {
    return fmt::format("{} Policy {}, budget {:.1f} of {:.1f} GiB.", device.capabilities.sentence, config.policy,
                       gib(device.budget_bytes), gib(device.total_bytes));
  });
  if (!device.capabilities.can_decode_parameters) {
    log(LogLevel::Warn, "launch arguments cannot be read (CUDA 12.4 needed): no policy moves what launches use");
  }
  if (has_budget(config) && config.device_budget.of(device.total_bytes) > device.total_bytes) {
    log(LogLevel::Warn, [&] {
      return fmt::format("HMSHIM_DEVICE_BUDGET is more than device {} has: the budget is its {:.1f} GiB", ordinal,
                         gib(device.total_bytes));
    });
  }
  report.start({.device = ordinal,
                .policy = config.policy,
                .device_total_bytes = device.total_bytes,
                .budget_bytes = device.budget_bytes,
                .managed_limit_bytes = limits_of(config, devices).managed_bytes,
                .can_migrate = device.capabilities.can_manage(),
                .capabilities = device.capabilities.sentence,
                .granularity = to_string(granularity_of_process().granularity),
                .granularity_reason = granularity_of_process().why});
}

void Shim::note_primary_context(CUdevice device, CUcontext context) noexcept {
  const auto ordinal = static_cast<std::size_t>(device);
  if (ordinal < devices.size())
    devices[ordinal].primary_context.store(reinterpret_cast<std::uintptr_t>(context), std::memory_order_relaxed);
}

std::uint64_t Shim::primary_context(CUdevice device) const noexcept {
  const auto ordinal = static_cast<std::size_t>(device);
  return ordinal < devices.size() ? devices[ordinal].primary_context.load(std::memory_order_relaxed) : 0;
}

void Shim::finish() noexcept {
  // In a child, forked or cloned, the file is the parent's and the locks may be held for ever; an exit inside a
  // handler, from a signal's, may hold them itself.
  if (getpid() != pid_ || InShim::is_nested()) return;
  contain([this] {
    engines.end();
    trace.finish();
    write_profile();
    if (!report.is_open()) return;  // what follows looks through every object of the process
    std::vector<HookTally> hooks;
    for (std::size_t id = 0; id < kHookCount; ++id) {
      hooks.push_back({kHookSymbols[id], hook_hits(static_cast<HookId>(id)) + hook_bypasses(static_cast<HookId>(id))});
    }
    report.finish({.policy = config.policy,
                   .gate = gate().state(),
                   .gate_reason = gate().reason(),
                   .devices = engines.totals(),
                   .lifetimes = engines.lifetimes(),
                   .managed = managed_allocations.tally(),
                   .device = device_allocations.tally(),
                   .hooks = std::move(hooks),
                   .bypasses = bypasses.tallies(),
                   .callers = callers.tallies(),
                   .bound_to_driver = libraries_bound_to_driver(),
                   .driver_copies = driver_copies()});
  });
}

CUresult on_cuInit(unsigned flags) {
  const CUresult result = real().cuInit(flags);
  if (result == CUDA_SUCCESS) Shim::start();
  return result;
}

}  // namespace hmshim::interpose
