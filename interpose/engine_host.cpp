#include "interpose/engine_host.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "interpose/gate.hpp"

namespace hmshim::interpose {

namespace {

// 1 MiB: at the some 3,500 launches of an iteration, several iterations fit between two synchronisations of the guest.
constexpr std::size_t kQueueSlots = 16384;

// Copies have no kernel; the extents they name tell them apart.
constexpr std::uint64_t kCopySignature = 0x636F7079;

}  // namespace

// What the launch path believes of each extent, readable without the lock: the device it belongs to and whether it is
// resident there. One byte pair per id in address space of which only the used part is ever backed.
class EngineHost::Hints {
 public:
  Hints() {
    void* memory = mmap(nullptr, kExtents * sizeof(Hint), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    hints_ = static_cast<Hint*>(memory);
  }
  ~Hints() { munmap(hints_, kExtents * sizeof(Hint)); }
  Hints(const Hints&) = delete;
  Hints& operator=(const Hints&) = delete;

  // Ids past the end are always absent: their launches take the lock, nothing worse.
  [[nodiscard]] bool is_resident(policy::ExtentId extent) const noexcept {
    return extent < kExtents && hints_[extent].load(std::memory_order_relaxed) % 2 != 0;
  }
  [[nodiscard]] std::uint16_t device(policy::ExtentId extent) const noexcept {
    return extent < kExtents ? hints_[extent].load(std::memory_order_relaxed) / 2 : std::uint16_t{0};
  }
  void set(policy::ExtentId extent, std::uint16_t device, bool is_resident) noexcept {
    if (extent < kExtents)
      hints_[extent].store(static_cast<std::uint16_t>(device * 2 + is_resident), std::memory_order_relaxed);
  }

 private:
  using Hint = std::atomic<std::uint16_t>;
  static_assert(sizeof(Hint) == 2);
  static constexpr std::size_t kExtents = std::size_t{1} << 24;
  Hint* hints_;
};

EngineHost::EngineHost(const uvm::DriverApi& driver, uvm::Migrator& migrator, Report& report, std::string_view policy,
                       std::span<const std::uint64_t> budgets_bytes)
    : driver_(driver), migrator_(migrator), report_(report), queue_(kQueueSlots), hints_(std::make_unique<Hints>()) {
  for (const std::uint64_t budget_bytes : budgets_bytes) {
    devices_.push_back({std::make_unique<policy::Engine>(policy::EngineConfig{policy, budget_bytes}), budget_bytes});
  }
}

EngineHost::~EngineHost() = default;

void EngineHost::allocated(const uvm::Allocation& allocation) {
  const std::lock_guard lock(mutex_);
  digest_queue();
  hints_->set(allocation.extent, allocation.device, false);
  // Size and ordinal tell the allocations of one iteration from each other and find them again in the next: frameworks
  // allocate from few call sites, and addresses move.
  Device& device = devices_[allocation.device];
  device.engine->allocated({allocation.extent, policy::round_up_to_block(allocation.bytes),
                            allocation.bytes * 0x9E3779B97F4A7C15ULL + device.allocations});
  ++device.allocations;
}

void EngineHost::freed(const uvm::Allocation& allocation) {
  const std::lock_guard lock(mutex_);
  digest_queue();
  hints_->set(allocation.extent, allocation.device, false);
  devices_[allocation.device].engine->freed({allocation.extent});
}

void EngineHost::set_budget(std::uint16_t device, std::uint64_t budget_bytes) {
  const std::lock_guard lock(mutex_);
  devices_[device].budget_bytes = budget_bytes;
  devices_[device].engine->set_budget(budget_bytes);
}

bool EngineHost::are_resident(std::span<const policy::ExtentId> extents) const noexcept {
  return std::all_of(extents.begin(), extents.end(),
                     [this](policy::ExtentId extent) { return hints_->is_resident(extent); });
}

// Reading the clock would be a third of the launch path. Once iterations are known, only launches that look like the
// last of one are timed.
std::uint64_t EngineHost::stamp(std::uint64_t signature) const noexcept {
  const std::uint64_t boundary = boundary_signature_.load(std::memory_order_relaxed);
  return boundary == 0 || boundary == signature ? driver_.now_ns() : 0;
}

void EngineHost::launch(std::uint64_t signature, std::span<const policy::ExtentId> extents, CUstream stream) {
  submit({tick_.fetch_add(1, std::memory_order_relaxed), signature, stamp(signature), extents}, false, stream);
}

void EngineHost::copy(std::span<const policy::ExtentId> extents, CUstream stream) {
  submit({tick_.fetch_add(1, std::memory_order_relaxed), kCopySignature, stamp(kCopySignature), extents}, true, stream);
}

void EngineHost::submit(const policy::Launch& launch, bool is_copy, CUstream stream) {
  if (are_resident(launch.touched)) {
    queue_.push(launch, is_copy);
    if (queue_.is_half_full()) settle();
    return;
  }
  policy::Actions actions;
  {
    const std::lock_guard lock(mutex_);
    digest_queue();
    digest(launch, is_copy);
    actions.swap(actions_);
  }
  if (gate().is_active()) migrator_.execute(actions, stream);
}

void EngineHost::settle() noexcept {
  try {
    {
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (!lock.owns_lock()) return;
      digest_queue();
    }
    report_.flush();
  } catch (...) {
    gate().pass_through(Reason::internal_error);
  }
}

void EngineHost::digest_queue() {
  queue_.drain([this](const policy::Launch& launch, bool is_copy) { digest(launch, is_copy); });
}

// A launch may name extents of several devices (peer access): each engine hears of its own. One that names none is
// counted where the last one was. The caller holds mutex_.
void EngineHost::digest(const policy::Launch& launch, bool is_copy) {
  if (launch.touched.empty()) {
    feed(last_device_, launch, is_copy);
    return;
  }
  const std::uint16_t first = hints_->device(launch.touched.front());
  const auto is_of = [this](std::uint16_t device) {
    return [this, device](policy::ExtentId extent) { return hints_->device(extent) == device; };
  };
  if (devices_.size() == 1 || std::all_of(launch.touched.begin(), launch.touched.end(), is_of(first))) {
    feed(first, launch, is_copy);
    return;
  }
  for (std::uint16_t device = 0; device < devices_.size(); ++device) {
    policy::ExtentId own[policy::kMaxTouched];
    const auto end = std::copy_if(launch.touched.begin(), launch.touched.end(), own, is_of(device));
    if (end == own) continue;
    policy::Launch part = launch;
    part.touched = {own, end};
    feed(device, part, is_copy);
  }
}

void EngineHost::feed(std::uint16_t ordinal, const policy::Launch& launch, bool is_copy) {
  Device& device = devices_[ordinal];
  last_device_ = ordinal;
  const std::size_t first_action = actions_.size();
  is_copy ? device.engine->copy(launch, actions_) : device.engine->launch(launch, actions_);
  ++(is_copy ? device.copies : device.launches);
  if (launch.time_ns != 0) {
    if (device.first_ns == 0) device.first_ns = launch.time_ns;
    device.last_ns = launch.time_ns;
  }
  for (std::size_t i = first_action; i < actions_.size(); ++i) hints_->set(actions_[i].extent, ordinal, false);
  for (const policy::ExtentId extent : launch.touched) {
    if (device.engine->is_resident(extent)) hints_->set(extent, ordinal, true);
  }
  if (const auto iteration = device.engine->take_completed_iteration()) {
    report_.push({ordinal, counters_of(device, *iteration)});
    boundary_signature_.store(launch.signature, std::memory_order_relaxed);
  }
}

Counters EngineHost::counters_of(const Device& device, const policy::IterationStats& stats) const {
  Counters counters;
  counters.iteration = stats.ordinal;
  counters.period_launches = device.engine->iterations().period_launches();
  counters.confidence = stats.confidence;
  counters.time_ns = stats.end_ns - stats.begin_ns;
  counters.launches = stats.launches;
  counters.copies = stats.copies;
  counters.footprint_bytes = stats.footprint_bytes;
  counters.working_set_bytes = stats.working_set_bytes;
  counters.resident_bytes = device.engine->resident_bytes();
  counters.budget_bytes = device.budget_bytes;
  counters.h2d_demand_bytes = stats.migrated.h2d_demand_bytes;
  counters.h2d_prefetch_bytes = stats.migrated.h2d_prefetch_bytes;
  counters.d2h_demote_bytes = stats.migrated.d2h_demote_bytes;
  counters.demotions = stats.migrated.demotions;
  counters.budget_excursions = stats.migrated.budget_excursions;
  counters.events_lost = queue_.lost();
  return counters;
}

void EngineHost::end() {
  const std::lock_guard lock(mutex_);
  digest_queue();
  for (std::uint16_t ordinal = 0; ordinal < devices_.size(); ++ordinal) {
    policy::IterationStats rest = devices_[ordinal].engine->current_iteration();
    if (rest.begin_ns != 0) rest.end_ns = driver_.now_ns();
    if (rest.launches + rest.copies > 0) report_.push({ordinal, counters_of(devices_[ordinal], rest)});
  }
}

std::vector<IterationRecord> EngineHost::totals() {
  const std::lock_guard lock(mutex_);
  std::vector<IterationRecord> totals;
  for (std::uint16_t ordinal = 0; ordinal < devices_.size(); ++ordinal) {
    const Device& device = devices_[ordinal];
    if (device.allocations == 0) continue;
    IterationRecord record{ordinal, {}};
    record.counters.iteration = device.engine->iterations().completed_iterations();
    record.counters.footprint_bytes = device.engine->footprint_bytes();
    record.counters.resident_bytes = device.engine->resident_bytes();
    record.counters.budget_bytes = device.budget_bytes;
    record.counters.time_ns = device.last_ns - device.first_ns;
    record.counters.confidence = device.engine->iterations().confidence();
    record.counters.launches = device.launches;
    record.counters.copies = device.copies;
    const policy::MigrationTotals& migrated = device.engine->totals();
    record.counters.h2d_demand_bytes = migrated.h2d_demand_bytes;
    record.counters.h2d_prefetch_bytes = migrated.h2d_prefetch_bytes;
    record.counters.d2h_demote_bytes = migrated.d2h_demote_bytes;
    record.counters.demotions = migrated.demotions;
    record.counters.budget_excursions = migrated.budget_excursions;
    record.counters.events_lost = queue_.lost();
    totals.push_back(record);
  }
  return totals;
}

}  // namespace hmshim::interpose
