#include "interpose/engine_host.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "interpose/gate.hpp"

namespace hmshim::interpose {

namespace {

// 1 MiB: at the some 3,500 launches of an iteration, several iterations fit between two synchronisations of the guest.
constexpr std::size_t kQueueSlots = 16384;

// Copies have no kernel; the extents they name tell them apart.
constexpr std::uint64_t kCopySignature = 0x636F7079;

void add_flight(Counters& counters, const PilotTotals& now, const PilotTotals& before) {
  counters.planned_launches = now.planned_launches - before.planned_launches;
  counters.gates = now.gates - before.gates;
  counters.divergences = now.divergences - before.divergences;
  counters.plans = now.plans - before.plans;
  counters.plan_evaluations = now.plan_evaluations - before.plan_evaluations;
  counters.plan_ns = now.plan_ns - before.plan_ns;
}

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
    return extent < kExtents ? static_cast<std::uint16_t>(hints_[extent].load(std::memory_order_relaxed) / 2)
                             : std::uint16_t{0};
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
                       std::span<const std::uint64_t> budgets_bytes, bool can_discard)
    : driver_(driver), migrator_(migrator), report_(report), queue_(kQueueSlots), hints_(std::make_unique<Hints>()) {
  const bool learns = policy == "learned";
  for (const std::uint64_t budget_bytes : budgets_bytes) {
    Device& device = devices_.emplace_back();
    device.engine = std::make_unique<policy::Engine>(policy::EngineConfig{policy, budget_bytes, can_discard});
    device.budget_bytes = budget_bytes;
    looks_ahead_ = device.engine->looks_ahead();
    if (learns) device.pilot = std::make_unique<Pilot>(driver, static_cast<std::uint16_t>(devices_.size() - 1));
  }
}

EngineHost::~EngineHost() = default;

void EngineHost::foresee(std::span<const LearnedPattern> patterns) {
  for (const LearnedPattern& pattern : patterns) {
    if (pattern.device >= devices_.size() || !devices_[pattern.device].pilot) continue;
    devices_[pattern.device].pilot->foresee(pattern, devices_[pattern.device].budget_bytes);
  }
}

std::vector<LearnedPattern> EngineHost::patterns() const {
  std::vector<LearnedPattern> patterns;
  for (const Device& device : devices_) {
    if (!device.pilot) continue;
    for (LearnedPattern& pattern : device.pilot->patterns()) patterns.push_back(std::move(pattern));
  }
  return patterns;
}

std::string EngineHost::disproof() const {
  for (const Device& device : devices_) {
    if (std::string disproof = device.pilot ? device.pilot->disproof() : ""; !disproof.empty()) return disproof;
  }
  return "";
}

void EngineHost::note_allocated(Device& device, const uvm::Allocation& allocation) {
  if (!device.pilot) return;
  const policy::LiveExtent live{allocation.base, policy::round_up_to_block(allocation.bytes),
                                device.engine->is_resident(allocation.extent)};
  if (device.pilot->allocated(allocation.extent, live, allocation.context))
    wants_plan_.store(true, std::memory_order_relaxed);
}

void EngineHost::allocated(const uvm::Allocation& allocation) {
  const std::lock_guard lock(mutex_);
  digest_queue();
  hints_->set(allocation.extent, allocation.device, false);
  Device& device = devices_[allocation.device];
  device.engine->allocated(event_of(allocation));
  note_allocated(device, allocation);
}

policy::Allocated EngineHost::event_of(const uvm::Allocation& allocation) {
  ++devices_[allocation.device].allocations;
  return {allocation.extent, policy::round_up_to_block(allocation.bytes)};
}

void EngineHost::retired(const uvm::Allocation& allocation) {
  const std::lock_guard lock(mutex_);
  digest_queue();
  const Device& device = devices_[allocation.device];
  device.engine->retired({allocation.extent});
  if (device.pilot) device.pilot->freed(allocation.extent);
}

void EngineHost::revived(const uvm::Allocation& allocation) {
  const std::lock_guard lock(mutex_);
  digest_queue();
  Device& device = devices_[allocation.device];
  device.engine->revived(event_of(allocation));
  note_allocated(device, allocation);
}

void EngineHost::reshaped(std::span<const policy::ExtentId> before, std::span<const uvm::Allocation> after) {
  const std::lock_guard lock(mutex_);
  digest_queue();
  const std::uint16_t ordinal = hints_->device(before.front());  // a pool is of one device
  bool is_resident = true;
  for (const policy::ExtentId extent : before) {
    is_resident &= hints_->is_resident(extent);
    hints_->set(extent, ordinal, false);
  }
  std::vector<policy::Allocated> parts;
  for (const uvm::Allocation& part : after) {
    parts.push_back({part.extent, policy::round_up_to_block(part.bytes)});
    hints_->set(part.extent, ordinal, is_resident);
  }
  devices_[ordinal].engine->reshaped(before, parts);
}

void EngineHost::populate(policy::ExtentId extent, std::uint16_t device, CUstream stream) {
  policy::Actions actions;
  {
    const std::lock_guard lock(mutex_);
    digest_queue();
    if (devices_[device].pilot && devices_[device].pilot->is_following()) {
      if (extent >= is_unpopulated_.size()) is_unpopulated_.resize(std::size_t{extent} + 1);
      if (!is_unpopulated_[extent]) ++unpopulated_;
      is_unpopulated_[extent] = true;
      hints_->set(extent, device, false);  // its first launch must not pass by on the quick
      devices_[device].pilot->discarded(extent);
      return;
    }
    devices_[device].engine->populate(extent, actions_);
    for (const policy::Action& action : actions_) hints_->set(action.extent, device, action.extent == extent);
    actions.swap(actions_);
  }
  carry_out(actions, {&extent, 1}, stream);
}

bool EngineHost::is_resident(policy::ExtentId extent) const noexcept { return hints_->is_resident(extent); }

void EngineHost::freed(const uvm::Allocation& allocation) {
  const std::lock_guard lock(mutex_);
  digest_queue();
  hints_->set(allocation.extent, allocation.device, false);
  const Device& device = devices_[allocation.device];
  device.engine->freed({allocation.extent});
  if (device.pilot) device.pilot->freed(allocation.extent);
}

void EngineHost::leave_context(std::uint64_t context) noexcept {
  for (const Device& device : devices_) {
    if (device.pilot && device.pilot->is_of(context)) device.pilot->shut();
  }
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

// Streams are few and live long. Those that do not find a number are not told apart, and what they do is not planned.
// That goes for the own streams of all threads but the first, too: one handle means them all.
std::uint8_t EngineHost::number_of(CUstream stream) noexcept {
  static thread_local const char thread = 0;
  if (stream == CU_STREAM_PER_THREAD) {
    const char* known = nullptr;
    if (!thread_with_stream_.compare_exchange_strong(known, &thread) && known != &thread) return policy::kOtherStream;
  }
  for (std::uint8_t number = 0; number < streams_.size(); ++number) {
    CUstream known = streams_[number].load(std::memory_order_relaxed);
    if (known == nullptr && streams_[number].compare_exchange_strong(known, stream)) return number;
    if (known == stream) return number;
  }
  return policy::kOtherStream;
}

void EngineHost::launch(std::uint64_t signature, std::span<const policy::ExtentId> extents, CUstream stream,
                        bool is_part) {
  submit(
      {tick_.fetch_add(1, std::memory_order_relaxed), signature, stamp(signature), extents, number_of(stream), is_part},
      false, stream);
}

void EngineHost::copy(std::span<const policy::ExtentId> extents, CUstream stream) {
  submit({tick_.fetch_add(1, std::memory_order_relaxed), kCopySignature, stamp(kCopySignature), extents,
          number_of(stream)},
         true, stream);
}

// Only the simulated GPU knows more than the program has shown.
policy::Launch EngineHost::foretold(policy::Launch launch) noexcept {
  if (driver_.simgpu_foretell == nullptr) return launch;
  unsigned long long last_launch_ns = 0;
  driver_.simgpu_foretell(&last_launch_ns, &foreknowledge_.h2d_bytes_per_s, &foreknowledge_.d2h_bytes_per_s);
  foreknowledge_.last_launch_ns = last_launch_ns;
  launch.foreknowledge = &foreknowledge_;
  return launch;
}

void EngineHost::submit(const policy::Launch& launch, bool is_copy, CUstream stream) {
  if (is_flying()) return fly(launch, is_copy, stream);
  if (!looks_ahead_ && are_resident(launch.touched)) {
    queue_.push(launch, is_copy);
    if (queue_.is_half_full()) settle();
    return;
  }
  policy::Actions actions, unpopulated;
  {
    const std::lock_guard lock(mutex_);
    digest_queue();
    digest(looks_ahead_ ? foretold(launch) : launch, is_copy);
    actions.swap(actions_);
    unpopulated = take_unpopulated(launch.touched);
  }
  carry_out(actions, launch.touched, stream);
  if (!unpopulated.empty()) carry_out(unpopulated, launch.touched, stream);
  wake_planners();
}

// Whether a write brings discarded memory back is not documented well enough to rest on it. Where a plan has given the
// memory already, nothing moves.
policy::Actions EngineHost::take_unpopulated(std::span<const policy::ExtentId> touched) {
  policy::Actions prefetches;
  if (unpopulated_ == 0) return prefetches;
  for (const policy::ExtentId extent : touched) {
    if (extent >= is_unpopulated_.size() || !is_unpopulated_[extent]) continue;
    is_unpopulated_[extent] = false;
    --unpopulated_;
    prefetches.push_back({policy::ActionKind::Prefetch, extent});
  }
  return prefetches;
}

void EngineHost::carry_out(const policy::Actions& actions, std::span<const policy::ExtentId> needed, CUstream stream) {
  if (!gate().is_active()) return;
  std::vector<policy::ExtentId> discards;
  for (const policy::Action& action : actions) {
    if (action.kind == policy::ActionKind::Discard) discards.push_back(action.extent);
  }
  if (!discards.empty() && discarder_ != nullptr) discarder_->discard(discards);
  if (looks_ahead_) {
    migrator_.beside().execute(actions, needed, stream);
  } else {
    migrator_.execute(actions, stream);
  }
}

bool EngineHost::is_flying() const noexcept {
  return std::any_of(devices_.begin(), devices_.end(),
                     [](const Device& device) { return device.pilot && device.pilot->is_engaged(); });
}

void EngineHost::wake_planners() {
  if (!wants_plan_.load(std::memory_order_relaxed) || !wants_plan_.exchange(false)) return;
  for (const Device& device : devices_) {
    if (device.pilot) device.pilot->wake_planner();
  }
}

std::optional<std::uint16_t> EngineHost::only_device_of(const policy::Launch& launch) const noexcept {
  if (launch.touched.empty()) return last_device_;
  const std::uint16_t first = hints_->device(launch.touched.front());
  const bool is_only = std::all_of(launch.touched.begin(), launch.touched.end(),
                                   [&](policy::ExtentId extent) { return hints_->device(extent) == first; });
  return is_only ? std::optional(first) : std::nullopt;
}

// Most launches of a plan are neither a step's first nor out of place: the pilot notes them, and the books are kept
// when the queue is digested.
bool EngineHost::fly_within_step(const policy::Launch& launch) {
  if (launch.touched.empty() || !are_resident(launch.touched)) return false;
  const std::optional<std::uint16_t> ordinal = only_device_of(launch);
  Pilot* const pilot = ordinal ? devices_[*ordinal].pilot.get() : nullptr;
  if (pilot == nullptr || !pilot->enqueue_within_step(launch)) return false;
  policy::Launch planned = launch;
  planned.is_planned = true;
  queue_.push(planned, false);
  if (queue_.is_half_full()) settle();
  return true;
}

void EngineHost::fly(const policy::Launch& launch, bool is_copy, CUstream stream) {
  if (!is_copy && fly_within_step(launch)) return;
  policy::Actions actions, unpopulated;
  Pilot::Clearance clearance;
  Pilot* pilot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    digest_queue();
    const std::optional<std::uint16_t> ordinal = only_device_of(launch);
    if (ordinal) pilot = devices_[*ordinal].pilot.get();
    if (pilot != nullptr) {
      const policy::Engine& engine = *devices_[*ordinal].engine;
      clearance = pilot->enqueue(launch, stream, [&](policy::ExtentId extent) { return engine.is_resident(extent); });
      if (clearance.has_begun) demote_strangers(*ordinal);
      if (clearance.has_ended) resynchronise(*ordinal);
    }
    if (clearance.is_planned) {
      feed(*ordinal, launch, is_copy, &clearance);
    } else {
      digest(launch, is_copy);
    }
    actions.swap(actions_);
    unpopulated = take_unpopulated(launch.touched);
  }
  if (!gate().is_active()) {
    if (pilot != nullptr) pilot->shut();
    return;
  }
  carry_out(actions, launch.touched, stream);
  if (pilot != nullptr) pilot->issue(clearance, stream);
  if (!unpopulated.empty()) carry_out(unpopulated, launch.touched, stream);
  wake_planners();
}

// What has not been touched for an iteration and is in no plan would take memory that the plan counts on.
void EngineHost::demote_strangers(std::uint16_t ordinal) {
  policy::Engine& engine = *devices_[ordinal].engine;
  const Pilot& pilot = *devices_[ordinal].pilot;
  const std::span<const policy::LiveExtent> extents = pilot.extents();
  for (policy::ExtentId id = 0; id < extents.size(); ++id) {
    if (!engine.is_resident(id) || pilot.is_in_plan(id) || engine.staleness(id) <= pilot.planned_launches()) continue;
    actions_.push_back({policy::ActionKind::Demote, id});
    engine.count_planned(0, extents[id].bytes);
    engine.place(id, false);
    hints_->set(id, ordinal, false);
  }
}

void EngineHost::resynchronise(std::uint16_t ordinal) {
  policy::Engine& engine = *devices_[ordinal].engine;
  const Pilot& pilot = *devices_[ordinal].pilot;
  for (policy::ExtentId id = 0; id < pilot.extents().size(); ++id) {
    if (pilot.extents()[id].bytes == 0) continue;
    if (pilot.is_in_plan(id)) engine.place(id, pilot.is_on_device(id));
    hints_->set(id, ordinal, engine.is_resident(id));
  }
}

void EngineHost::settle() noexcept {
  try {
    {
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (!lock.owns_lock()) return;
      digest_queue();
      settled_ns_ = driver_.now_ns();
    }
    CUcontext context = nullptr;
    for (const Device& device : devices_) {
      if (!device.pilot || !device.pilot->is_engaged()) continue;
      // A default stream is that of the current context.
      if (context == nullptr && driver_.cuCtxGetCurrent(&context) != CUDA_SUCCESS) break;
      if (device.pilot->is_of(reinterpret_cast<std::uintptr_t>(context))) device.pilot->settle();
    }
    wake_planners();
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
  if (const auto only = only_device_of(launch)) return feed(*only, launch, is_copy);
  const auto is_of = [this](std::uint16_t device) {
    return [this, device](policy::ExtentId extent) { return hints_->device(extent) == device; };
  };
  for (std::uint16_t device = 0; device < devices_.size(); ++device) {
    policy::ExtentId own[policy::kMaxTouched];  // not a pilot's business: what it does not see cannot be in its plan
    const auto end = std::copy_if(launch.touched.begin(), launch.touched.end(), own, is_of(device));
    if (end == own) continue;
    policy::Launch part = launch;
    part.touched = {own, end};
    feed(device, part, is_copy, nullptr, false);
  }
}

void EngineHost::feed(std::uint16_t ordinal, const policy::Launch& launch, bool is_copy,
                      const Pilot::Clearance* clearance, bool is_whole) {
  Device& device = devices_[ordinal];
  last_device_ = ordinal;
  const std::size_t first_action = actions_.size();
  if (device.pilot && is_whole) device.pilot->record(launch, is_copy);
  // Copy engines fault page by page. Where the program does not do what the plan expects, nobody knows what the driver
  // has sent away: what a copy names is asked for in any case, which costs little if it is there.
  if (is_copy && device.pilot && device.pilot->is_engaged() && !(clearance != nullptr && clearance->is_certain)) {
    for (const policy::ExtentId extent : launch.touched) actions_.push_back({policy::ActionKind::Prefetch, extent});
  }
  if (clearance != nullptr) {
    device.engine->count_planned(clearance->fetched_bytes, clearance->written_back_bytes);
    device.most_retired_bytes = clearance->most_retired_bytes;
  }
  if (clearance != nullptr || launch.is_planned) {
    device.engine->follow(launch, is_copy, device.most_retired_bytes, actions_);
  } else {
    is_copy ? device.engine->copy(launch, actions_) : device.engine->launch(launch, actions_);
  }
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
    note_iteration(ordinal, *iteration);
    if (device.pilot) {
      device.flown_before = device.pilot->totals();
      const policy::IterationDetector& detector = device.engine->iterations();
      if (device.pilot->iteration_completed(detector.period_launches(), iteration->confidence,
                                            iteration->footprint_bytes, device.budget_bytes)) {
        wants_plan_.store(true, std::memory_order_relaxed);
      }
    }
    boundary_signature_.store(launch.signature, std::memory_order_relaxed);
  }
}

void EngineHost::note_iteration(std::uint16_t ordinal, const policy::IterationStats& stats) noexcept {
  Device& device = devices_[ordinal];
  device.largest_working_set_bytes = std::max(device.largest_working_set_bytes, stats.working_set_bytes);
  report_.push({ordinal, counters_of(device, stats, device.flown_before)});
}

Counters EngineHost::counters_of(const Device& device, const policy::IterationStats& stats,
                                 const PilotTotals& flown_before) const {
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
  counters.discarded_bytes = stats.migrated.discarded_bytes;
  counters.demotions = stats.migrated.demotions;
  counters.budget_excursions = stats.migrated.budget_excursions;
  counters.events_lost = queue_.lost();
  if (device.pilot) add_flight(counters, device.pilot->totals(), flown_before);
  return counters;
}

void EngineHost::end() {
  for (const Device& device : devices_) {
    if (device.pilot) device.pilot->shut();
  }
  const std::lock_guard lock(mutex_);
  digest_queue();
  for (std::uint16_t ordinal = 0; ordinal < devices_.size(); ++ordinal) {
    policy::IterationStats rest = devices_[ordinal].engine->current_iteration();
    // Not the time of tear-down: the program has last waited for its own work.
    if (rest.begin_ns != 0) rest.end_ns = std::max({rest.begin_ns, rest.end_ns, settled_ns_});
    if (rest.launches + rest.copies > 0) note_iteration(ordinal, rest);
  }
}

std::vector<LifetimeRecord> EngineHost::lifetimes() {
  const std::lock_guard lock(mutex_);
  std::vector<LifetimeRecord> records;
  for (std::uint16_t ordinal = 0; ordinal < devices_.size(); ++ordinal) {
    const policy::LifetimeTallies tallies = devices_[ordinal].engine->lifetimes();
    for (std::size_t lifetime = 0; lifetime < tallies.size(); ++lifetime) {
      const auto& [extents, bytes, migrated_bytes] = tallies[lifetime];
      if (extents == 0) continue;
      records.push_back(
          {ordinal, to_string(static_cast<policy::LifetimeClass>(lifetime)), extents, bytes, migrated_bytes});
    }
  }
  return records;
}

std::vector<IterationRecord> EngineHost::totals() {
  const std::lock_guard lock(mutex_);
  std::vector<IterationRecord> totals;
  for (std::uint16_t ordinal = 0; ordinal < devices_.size(); ++ordinal) {
    const Device& device = devices_[ordinal];
    if (device.allocations == 0) continue;
    totals.push_back({ordinal, counters_of(device,
                                           {.ordinal = device.engine->iterations().completed_iterations(),
                                            .launches = device.launches,
                                            .copies = device.copies,
                                            .working_set_bytes = device.largest_working_set_bytes,
                                            .footprint_bytes = device.engine->footprint_bytes(),
                                            .migrated = device.engine->totals(),
                                            .begin_ns = device.first_ns,
                                            .end_ns = device.last_ns,
                                            .confidence = device.engine->iterations().confidence()},
                                           {})});
  }
  return totals;
}

}  // namespace hmshim::interpose
