#include "interpose/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <utility>

#include "interpose/config.hpp"
#include "interpose/json_text.hpp"
#include "interpose/log.hpp"

namespace hmshim::interpose {

// A bounded queue of many producers (the engines of several devices) and one consumer, who holds the report's mutex.
// `turn` of a slot is the position that may be written next, and that position + 1 once it is written.
class Report::Ring {
 public:
  Ring() {
    for (std::uint64_t position = 0; position < kSlots; ++position) slots_[position].turn = position;
  }

  void push(const IterationRecord& record) noexcept {
    std::uint64_t position = head_.load(std::memory_order_relaxed);
    for (;;) {
      Slot& slot = slots_[position % kSlots];
      const std::uint64_t turn = slot.turn.load(std::memory_order_acquire);
      if (turn == position) {
        if (!head_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) continue;
        slot.record = record;
        slot.turn.store(position + 1, std::memory_order_release);
        return;
      }
      if (turn < position) {
        dropped_.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      position = head_.load(std::memory_order_relaxed);
    }
  }

  bool pop(IterationRecord& record) noexcept {
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    Slot& slot = slots_[tail % kSlots];
    if (slot.turn.load(std::memory_order_acquire) != tail + 1) return false;
    record = slot.record;
    slot.turn.store(tail + kSlots, std::memory_order_release);
    tail_.store(tail + 1, std::memory_order_relaxed);
    return true;
  }

  [[nodiscard]] bool is_empty() const noexcept {
    return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kSlots = 256;
  struct Slot {
    std::atomic<std::uint64_t> turn{0};
    IterationRecord record;
  };
  std::array<Slot, kSlots> slots_;
  std::atomic<std::uint64_t> head_{0};
  std::atomic<std::uint64_t> tail_{0};
  std::atomic<std::uint64_t> dropped_{0};
};

struct Report::Kept {
  static constexpr std::size_t kEach = 8;
  std::vector<IterationRecord> first;
  std::deque<IterationRecord> last;
  std::uint64_t skipped = 0;

  void add(const IterationRecord& record) {
    if (first.size() < kEach) {
      first.push_back(record);
      return;
    }
    last.push_back(record);
    if (last.size() > kEach) {
      last.pop_front();
      ++skipped;
    }
  }
};

namespace {

// ---- JSON ----

std::string number(std::uint64_t value) { return fmt::format("{}", value); }
// JSON knows no infinity and no NaN.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.4f}", value) : "null"; }

class JsonObject {
 public:
  void add(std::string_view key, const std::string& json) {
    text_ += fmt::format("{}\"{}\":{}", text_.empty() ? "" : ",", key, json);
  }
  [[nodiscard]] std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

template <class Items, class ToJson>
std::string array(const Items& items, ToJson to_json) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : ",") + to_json(item);
  return "[" + text + "]";
}

JsonObject record_of(std::string_view kind, pid_t pid) {
  JsonObject object;
  object.add("schema", number(std::uint64_t{1}));
  object.add("kind", quoted(kind));
  object.add("pid", number(static_cast<std::uint64_t>(pid)));
  return object;
}

void add(JsonObject& object, const IterationRecord& record) {
  object.add("device", number(std::uint64_t{record.device}));
#define COUNTER(name, unit_name, heading, sentence) object.add(#name, number(record.counters.name));
#include "interpose/counters.def"
#undef COUNTER
}

std::string json(const AllocationTally& tally) {
  JsonObject object;
  object.add("count", number(tally.count));
  object.add("bytes", number(tally.bytes));
  object.add("peak_bytes", number(tally.peak_bytes));
  return object.text();
}

std::string json(const LifetimeRecord& record) {
  JsonObject object;
  object.add("device", number(std::uint64_t{record.device}));
  object.add("class", quoted(record.lifetime));
  object.add("extents", number(record.extents));
  object.add("bytes", number(record.bytes));
  object.add("migrated_bytes", number(record.migrated_bytes));
  return object.text();
}

std::string json(const BypassTally& tally) {
  JsonObject object;
  object.add("reason", quoted(tally.reason));
  object.add("count", number(tally.count));
  object.add("bytes", number(tally.bytes));
  return object.text();
}

std::string json(const CallerTally& tally) {
  JsonObject object;
  object.add("library", quoted(tally.name));
  object.add("excluded_allocations", number(tally.excluded_allocations));
  object.add("excluded_bytes", number(tally.excluded_bytes));
  object.add("refused_handles", number(tally.refused_handles));
  object.add("refused_bytes", number(tally.refused_bytes));
  return object.text();
}

std::string json(const std::vector<HookTally>& hooks) {
  JsonObject object;
  for (const HookTally& hook : hooks) {
    if (hook.hits > 0) object.add(hook.symbol, number(hook.hits));
  }
  return object.text();
}

std::string json(pid_t pid, const StartRecord& record) {
  JsonObject object = record_of("start", pid);
  object.add("version", quoted(HMSHIM_VERSION));
  object.add("device", number(std::uint64_t{record.device}));
  object.add("policy", quoted(record.policy));
  object.add("device_total_bytes", number(record.device_total_bytes));
  object.add("budget_bytes", number(record.budget_bytes));
  object.add("managed_limit_bytes",
             record.managed_limit_bytes == kNoLimit ? "null" : number(record.managed_limit_bytes));
  object.add("can_migrate", record.can_migrate ? "true" : "false");
  object.add("capabilities", quoted(record.capabilities));
  object.add("granularity", quoted(record.granularity));
  object.add("granularity_reason", quoted(record.granularity_reason));
  return object.text();
}

std::string json(pid_t pid, const IterationRecord& record) {
  JsonObject object = record_of("iteration", pid);
  add(object, record);
  return object.text();
}

std::string json(pid_t pid, const ExitRecord& record, std::uint64_t dropped) {
  JsonObject object = record_of("exit", pid);
  object.add("policy", quoted(record.policy));
  object.add("gate", quoted(to_string(record.gate)));
  object.add("gate_reason", quoted(to_string(record.gate_reason)));
  object.add("devices", array(record.devices, [](const IterationRecord& totals) {
               JsonObject device;
               add(device, totals);
               return device.text();
             }));
  object.add("lifetimes", array(record.lifetimes, [](const LifetimeRecord& each) { return json(each); }));
  JsonObject allocations;
  allocations.add("managed", json(record.managed));
  allocations.add("device", json(record.device));
  object.add("allocations", allocations.text());
  object.add("hooks", json(record.hooks));
  object.add("bypasses", array(record.bypasses, [](const BypassTally& tally) { return json(tally); }));
  object.add("callers", array(record.callers, [](const CallerTally& tally) { return json(tally); }));
  object.add("bound_to_driver", array(record.bound_to_driver, [](const std::string& name) { return quoted(name); }));
  object.add("driver_copies", number(static_cast<std::uint64_t>(record.driver_copies)));
  object.add("records_dropped", number(dropped));
  return object.text();
}

// ---- the table ----

std::string readable_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

namespace readable {
std::string count(std::uint64_t value) { return number(value); }
std::string bytes(std::uint64_t value) { return readable_bytes(value); }
std::string ns(std::uint64_t value) { return fmt::format("{:.2f} ms", static_cast<double>(value) / 1e6); }
std::string ratio(double value) { return fmt::format("{:.2f}", value); }
}  // namespace readable

using Row = std::vector<std::string>;

Row heading_row() {
  Row row{"device"};
#define COUNTER(name, unit_name, heading, sentence) \
  if (*heading != '\0') row.emplace_back(heading);
#include "interpose/counters.def"
#undef COUNTER
  return row;
}

Row row_of(const IterationRecord& record) {
  Row row{number(std::uint64_t{record.device})};
#define COUNTER(name, unit_name, heading, sentence) \
  if (*heading != '\0') row.push_back(readable::unit_name(record.counters.name));
#include "interpose/counters.def"
#undef COUNTER
  return row;
}

std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      text += fmt::format("{}{:>{}}", column == 0 ? "" : "  ", row[column], widths[column]);
    }
    text += '\n';
  }
  return text;
}

}  // namespace

Report::Report(std::string path, bool wants_summary, pid_t pid)
    : path_(std::move(path)),
      wants_summary_(wants_summary),
      pid_(pid),
      is_open_(wants_summary || !path_.empty()),
      ring_(is_open_ ? std::make_unique<Ring>() : nullptr),
      kept_(std::make_unique<Kept>()) {}

Report::~Report() = default;

void Report::push(const IterationRecord& record) noexcept {
  if (is_open_.load(std::memory_order_relaxed)) ring_->push(record);
}

void Report::start(const StartRecord& record) noexcept {
  if (!is_open_) return;
  try {
    const std::lock_guard lock(mutex_);
    write_line(json(pid_, record));
  } catch (...) {
    log(LogLevel::Warn, "no memory for the report's start record");
  }
}

void Report::flush() noexcept {
  if (!is_open_.load(std::memory_order_relaxed) || ring_->is_empty()) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  try {
    write_pushed();
  } catch (...) {
    log(LogLevel::Warn, "no memory for the report: an iteration is missing from it");
  }
}

void Report::finish(const ExitRecord& record) noexcept {
  if (!is_open_.exchange(false)) return;
  try {
    const std::lock_guard lock(mutex_);
    write_pushed();
    write_line(json(pid_, record, ring_->dropped()));
    file_.close();
    if (wants_summary_) write_summary(record);
  } catch (...) {
    log(LogLevel::Warn, "no memory for the report's exit record");
  }
}

void Report::forget_after_fork() noexcept {
  is_open_ = false;
  file_.close();  // without the lock: a thread that the child does not have may hold it for ever
}

void Report::write_pushed() {
  IterationRecord record;
  while (ring_->pop(record)) {
    if (wants_summary_) kept_->add(record);
    write_line(json(pid_, record));
  }
}

void Report::write_line(std::string_view line) {
  if (path_.empty()) return;
  if (!was_opened_) {
    was_opened_ = true;
    if (const int error = file_.open_append(path_.c_str()); error != 0) {
      log(LogLevel::Warn, [&] { return fmt::format("cannot write the report {}: {}", path_, std::strerror(error)); });
    }
  }
  if (!file_.is_open()) return;
  // A full disk, or a guest that closes every descriptor it knows.
  if (const int error = file_.write(fmt::format("{}\n", line)); error != 0) {
    log(LogLevel::Warn, [&] { return fmt::format("the report {} ends early: {}", path_, std::strerror(error)); });
  }
}

void Report::write_summary(const ExitRecord& record) {
  std::string text = fmt::format("hmshim[{}]: policy {}, {}", pid_, record.policy, to_string(record.gate));
  if (record.gate_reason != Reason::none) text += fmt::format(": {}", to_string(record.gate_reason));
  text += '\n';
  std::vector<Row> rows{heading_row()};
  for (const IterationRecord& iteration : kept_->first) rows.push_back(row_of(iteration));
  if (kept_->skipped > 0) rows.push_back({fmt::format("({} more)", kept_->skipped)});
  for (const IterationRecord& iteration : kept_->last) rows.push_back(row_of(iteration));
  for (const IterationRecord& totals : record.devices) {
    rows.push_back(row_of(totals));
    rows.back()[0] += " in all";
  }
  if (rows.size() > 1) text += table(rows);
  text +=
      fmt::format("allocations: {} managed ({}, peak {}), {} on the device ({}, peak {})\n", record.managed.count,
                  readable_bytes(record.managed.bytes), readable_bytes(record.managed.peak_bytes), record.device.count,
                  readable_bytes(record.device.bytes), readable_bytes(record.device.peak_bytes));
  for (const BypassTally& bypass : record.bypasses) {
    text += fmt::format("passed through: {} x {}{}\n", bypass.count, bypass.reason,
                        bypass.bytes > 0 ? " (" + readable_bytes(bypass.bytes) + ")" : "");
  }
  for (const std::string& library : record.bound_to_driver) {
    text += fmt::format("not seen: {}, which is bound to the driver itself (RTLD_DEEPBIND)\n", library);
  }
  if (record.driver_copies > 1) text += "not seen: another copy of the driver in a namespace of its own (dlmopen)\n";
  write_to_stderr(text);
}

}  // namespace hmshim::interpose
