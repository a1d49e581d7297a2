#include "interpose/trace_recorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "interpose/json_text.hpp"
#include "interpose/log.hpp"

namespace hmshim::interpose {

namespace {

// Of the format: a recording, where tensors are born and die by lines of their own.
constexpr int kSchema = 2;

constexpr std::uint64_t kNoTensor = ~std::uint64_t{0};

// Memory for calls that are not written yet: some 1.3 MiB.
constexpr std::size_t kBatchNotes = 16384;
constexpr std::size_t kBatchOperands = 4 * kBatchNotes;
// Notes behind a call whose end has not been seen. More, and it is written with an estimate.
constexpr std::size_t kMostPending = 4 * kBatchNotes;
// When all events are in use, as many calls go by before they are looked through again.
constexpr std::size_t kCallsBetweenLooks = 256;
constexpr std::size_t kWriteBytes = std::size_t{1} << 16;

constexpr std::size_t kMostStreams = 255;
// Of names_.
constexpr std::uint32_t kCopyName = 0;
constexpr std::uint32_t kGraphName = 1;
constexpr std::uint64_t kCopySignature = 0;

}  // namespace

TraceRecorder::TraceRecorder(const uvm::DriverApi& driver, const Captures& captures, std::string path,
                             std::string_view program)
    : driver_(driver),
      captures_(captures),
      path_(std::move(path)),
      program_(program),
      is_on_(!path_.empty()),
      pairs_(path_.empty() ? nullptr : std::make_unique<Pair[]>(kEventPairs)),
      names_{"copy", "graph"} {
  if (path_.empty()) return;
  if (driver_.cuEventElapsedTime != nullptr) {
    for (std::size_t pair = kEventPairs; pair > 0; --pair) free_pairs_.push_back(static_cast<PairIndex>(pair - 1));
  }
  for (Batch* batch : {&batch_, &backlog_}) {
    batch->notes.reserve(kBatchNotes);
    batch->operands.reserve(kBatchOperands + policy::kMaxTouched);
  }
}

void TraceRecorder::give_up() noexcept {
  is_on_ = false;
  log(LogLevel::Warn, [&] { return fmt::format("no memory for the trace: {} ends early", path_); });
}

// ---- what the guest does

void TraceRecorder::allocated(std::uint64_t address, std::uint64_t bytes, policy::ExtentId extent) noexcept {
  if (!is_on()) return;
  try {
    {
      const std::lock_guard lock(mutex_);
      const std::uint64_t id = next_tensor_++;
      tensors_[address] = {id, extent};
      if (extent != policy::kNoExtent) {
        if (extent >= tensor_of_.size()) tensor_of_.resize(extent + 1, kNoTensor);
        tensor_of_[extent] = id;
      }
      batch_.notes.push_back({.kind = Kind::Allocated, .subject = id, .magnitude = bytes});
    }
    flush_if_full();
  } catch (...) {
    give_up();
  }
}

void TraceRecorder::freed(std::uint64_t address) noexcept {
  if (!is_on()) return;
  try {
    {
      const std::lock_guard lock(mutex_);
      const auto found = tensors_.find(address);
      if (found == tensors_.end()) return;
      const auto [id, extent] = found->second;
      tensors_.erase(found);
      if (extent != policy::kNoExtent && tensor_of_[extent] == id) tensor_of_[extent] = kNoTensor;
      batch_.notes.push_back({.kind = Kind::Freed, .subject = id});
    }
    flush_if_full();
  } catch (...) {
    give_up();
  }
}

TraceRecorder::Running TraceRecorder::launch(const void* function, KernelLayouts& kernels, std::uint64_t signature,
                                             std::span<const policy::ExtentId> extents, CUstream stream) noexcept {
  if (!is_on()) return {};
  try {
    return begin(function == nullptr ? kGraphName : name_of(function, kernels), signature, extents, stream);
  } catch (...) {
    give_up();
    return {};
  }
}

TraceRecorder::Running TraceRecorder::copy(std::span<const policy::ExtentId> extents, CUstream stream) noexcept {
  if (!is_on()) return {};
  try {
    return begin(kCopyName, kCopySignature, extents, stream);
  } catch (...) {
    give_up();
    return {};
  }
}

TraceRecorder::Running TraceRecorder::begin(std::uint32_t name, std::uint64_t signature,
                                            std::span<const policy::ExtentId> extents, CUstream stream) {
  const PairIndex pair = start_pair(stream);
  {
    const std::lock_guard lock(mutex_);
    const std::size_t first = batch_.operands.size();
    for (const policy::ExtentId extent : extents) {
      const std::uint64_t id = extent < tensor_of_.size() ? tensor_of_[extent] : kNoTensor;
      const auto begin = batch_.operands.begin() + static_cast<std::ptrdiff_t>(first);
      if (id != kNoTensor && std::find(begin, batch_.operands.end(), id) == batch_.operands.end())
        batch_.operands.push_back(id);
    }
    batch_.notes.push_back({.kind = Kind::Call,
                            .stream = number_of(stream),
                            .pair = pair,
                            .operands = static_cast<std::uint32_t>(batch_.operands.size() - first),
                            .subject = name,
                            .magnitude = signature});
  }
  flush_if_full();
  return pair == kNoPair ? Running() : Running(*this, pair, stream);
}

void TraceRecorder::end(PairIndex index, CUstream stream) noexcept {
  Pair& pair = pairs_[static_cast<std::size_t>(index)];
  pair.is_good = driver_.cuEventRecord(pair.end, stream) == CUDA_SUCCESS;
  pair.has_ended.store(true, std::memory_order_release);
}

// Events are made where they are first needed. They belong to the context that is current then; the streams of another
// refuse them, and its calls are not measured.
TraceRecorder::PairIndex TraceRecorder::start_pair(CUstream stream) {
  PairIndex index = kNoPair;
  {
    const std::lock_guard lock(mutex_);
    if (free_pairs_.empty()) return kNoPair;
    index = free_pairs_.back();
    free_pairs_.pop_back();
  }
  Pair& pair = pairs_[static_cast<std::size_t>(index)];
  pair.has_ended.store(false, std::memory_order_relaxed);
  const auto is_made = [&](CUevent& event) {
    return event != nullptr || driver_.cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
  };
  if (is_made(pair.begin) && is_made(pair.end) && driver_.cuEventRecord(pair.begin, stream) == CUDA_SUCCESS)
    return index;
  give_back(index);
  return kNoPair;
}

void TraceRecorder::give_back(PairIndex pair) {
  const std::lock_guard lock(mutex_);
  free_pairs_.push_back(pair);
}

std::uint32_t TraceRecorder::name_of(const void* function, KernelLayouts& kernels) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = name_of_.find(function); known != name_of_.end()) return known->second;
  }
  const std::optional<HandleKind> kind = kernels.kind_of(function);
  const char* name = kind ? ask_name(function, *kind, driver_) : nullptr;
  const std::lock_guard lock(mutex_);
  const std::string text = name != nullptr ? name : fmt::format("kernel {}", name_of_.size());
  const auto found = std::find(names_.begin(), names_.end(), text);
  const auto index = static_cast<std::uint32_t>(found - names_.begin());
  if (found == names_.end()) names_.push_back(text);
  name_of_[function] = index;
  return index;
}

std::uint8_t TraceRecorder::number_of(CUstream stream) {
  const auto found = std::find(streams_.begin(), streams_.end(), stream);
  const auto number = static_cast<std::size_t>(found - streams_.begin());
  if (found == streams_.end() && number < kMostStreams) streams_.push_back(stream);
  return static_cast<std::uint8_t>(number);
}

void TraceRecorder::waited() noexcept {
  if (!is_on()) return;
  try {
    {
      const std::lock_guard lock(mutex_);
      batch_.notes.push_back({.kind = Kind::Waited});
    }
    const std::unique_lock file_lock(file_mutex_, std::try_to_lock);
    if (file_lock.owns_lock()) flush(/*is_last=*/false);
  } catch (...) {
    give_up();
  }
}

void TraceRecorder::forget_kernels() noexcept {
  if (!is_on()) return;
  const std::lock_guard lock(mutex_);
  name_of_.clear();
}

void TraceRecorder::leave_context() noexcept {
  if (!is_on()) return;
  try {
    const std::lock_guard file_lock(file_mutex_);
    flush(/*is_last=*/true);
    std::vector<PairIndex> idle = std::exchange(abandoned_pairs_, {});
    {
      const std::lock_guard lock(mutex_);
      idle.insert(idle.end(), free_pairs_.begin(), free_pairs_.end());
      free_pairs_.clear();
    }
    for (const PairIndex pair : idle) {
      for (CUevent* event :
           {&pairs_[static_cast<std::size_t>(pair)].begin, &pairs_[static_cast<std::size_t>(pair)].end}) {
        if (*event != nullptr) static_cast<void>(driver_.cuEventDestroy_v2(std::exchange(*event, nullptr)));
      }
      give_back(pair);
    }
  } catch (...) {
    give_up();
  }
}

void TraceRecorder::finish() noexcept {
  if (!is_on_.exchange(false)) return;
  try {
    const std::lock_guard file_lock(file_mutex_);
    flush(/*is_last=*/true);
    write(fmt::format("{{\"t\":\"E\",\"calls\":{},\"estimated\":{}}}\n", calls_, estimated_));
    file_.close();
  } catch (...) {
    give_up();
  }
}

void TraceRecorder::forget_after_fork() noexcept {
  is_on_ = false;
  file_.close();  // without the lock: a thread that the child does not have may hold it for ever
}

// ---- lines

void TraceRecorder::flush_if_full() {
  {
    const std::lock_guard lock(mutex_);
    const bool has_room = batch_.notes.size() < kBatchNotes && batch_.operands.size() < kBatchOperands;
    if (has_room && !(free_pairs_.empty() && batch_.notes.size() >= kCallsBetweenLooks)) return;
  }
  const std::lock_guard file_lock(file_mutex_);
  flush(/*is_last=*/false);
}

// The caller holds file_mutex_.
void TraceRecorder::flush(bool is_last) {
  backlog_.forget_written();
  {
    const std::lock_guard lock(mutex_);
    if (backlog_.notes.empty()) {
      std::swap(backlog_, batch_);
    } else {
      backlog_.notes.insert(backlog_.notes.end(), batch_.notes.begin(), batch_.notes.end());
      backlog_.operands.insert(backlog_.operands.end(), batch_.operands.begin(), batch_.operands.end());
      batch_.notes.clear();
      batch_.operands.clear();
    }
    known_names_.insert(known_names_.end(), names_.begin() + static_cast<std::ptrdiff_t>(known_names_.size()),
                        names_.end());
  }
  // While a stream is captured, asking for an event may end the capture.
  if (captures_.are_running() && !is_last) return;
  std::erase_if(abandoned_pairs_, [this](PairIndex pair) {
    float unused_ms = 0;
    const bool is_over = timing_of(pair, unused_ms) != Timing::Pending;
    if (is_over) give_back(pair);
    return is_over;
  });
  write_notes(is_last);
  write(std::exchange(text_, {}));
}

void TraceRecorder::Batch::forget_written() {
  notes.erase(notes.begin(), notes.begin() + static_cast<std::ptrdiff_t>(std::exchange(written_notes, 0)));
  operands.erase(operands.begin(), operands.begin() + static_cast<std::ptrdiff_t>(std::exchange(written_operands, 0)));
}

// Up to a call that has not ended.
void TraceRecorder::write_notes(bool is_last) {
  Batch& batch = backlog_;
  for (; batch.written_notes < batch.notes.size(); ++batch.written_notes) {
    const bool is_forced = is_last || batch.notes.size() - batch.written_notes > kMostPending;
    const Note& note = batch.notes[batch.written_notes];
    const std::span operands(batch.operands.data() + batch.written_operands, note.operands);
    switch (note.kind) {
      case Kind::Allocated:
        text_ += fmt::format("{{\"t\":\"T\",\"id\":{},\"bytes\":{}}}\n", note.subject, note.magnitude);
        break;
      case Kind::Freed:
        text_ += fmt::format("{{\"t\":\"F\",\"id\":{}}}\n", note.subject);
        break;
      case Kind::Waited:
        text_ += "{\"t\":\"S\"}\n";
        break;
      case Kind::Call:
        if (!add_call(note, operands, is_forced)) return;
        break;
    }
    batch.written_operands += note.operands;
    if (text_.size() >= kWriteBytes) write(std::exchange(text_, {}));
  }
}

bool TraceRecorder::add_call(const Note& note, std::span<const std::uint64_t> operands, bool is_forced) {
  Mean& mean = means_[note.magnitude];
  float duration_ms = 0;
  const Timing timing = note.pair == kNoPair ? Timing::Failed : timing_of(note.pair, duration_ms);
  if (timing == Timing::Pending && !is_forced) return false;
  if (timing == Timing::Pending) {
    abandoned_pairs_.push_back(note.pair);
  } else if (note.pair != kNoPair) {
    give_back(note.pair);
  }
  double duration_us = 1e3 * static_cast<double>(duration_ms);
  const bool is_estimated = timing != Timing::Measured;
  if (is_estimated) {
    ++estimated_;
    duration_us = mean.count == 0 ? 0 : mean.sum_us / static_cast<double>(mean.count);
  } else {
    mean.sum_us += duration_us;
    ++mean.count;
  }
  const std::string ids = fmt::format("{}", fmt::join(operands, ","));
  text_ += fmt::format(
      "{{\"t\":\"K\",\"id\":{},\"name\":{},\"in\":[{}],\"out\":[{}],\"workspace\":null,\"dur_us\":{:.3f},\"stream\":{}{"
      "}}}\n",
      calls_++, quoted(known_names_[note.subject]), ids, ids, duration_us, note.stream,
      is_estimated ? ",\"estimated\":true" : "");
  return true;
}

TraceRecorder::Timing TraceRecorder::timing_of(PairIndex index, float& duration_ms) const noexcept {
  const Pair& pair = pairs_[static_cast<std::size_t>(index)];
  if (!pair.has_ended.load(std::memory_order_acquire)) return Timing::Pending;
  if (!pair.is_good) return Timing::Failed;
  const CUresult result = driver_.cuEventQuery(pair.end);
  if (result == CUDA_ERROR_NOT_READY) return Timing::Pending;
  return result == CUDA_SUCCESS && driver_.cuEventElapsedTime(&duration_ms, pair.begin, pair.end) == CUDA_SUCCESS
             ? Timing::Measured
             : Timing::Failed;
}

void TraceRecorder::write(std::string_view text) {
  int error = 0;
  if (!was_opened_) {
    was_opened_ = true;
    if (const int refused = file_.open_append(path_.c_str()); refused != 0) {
      is_on_ = false;
      log(LogLevel::Warn, [&] { return fmt::format("cannot write the trace {}: {}", path_, std::strerror(refused)); });
      return;
    }
    error =
        file_.write(fmt::format("{{\"t\":\"h\",\"schema\":{},\"workload\":{},\"source\":\"hmshim "
                                "{}\",\"durations\":\"between two events, waits "
                                "for data included\"}}\n",
                                kSchema, quoted(program_), HMSHIM_VERSION));
  }
  if (error == 0 && file_.is_open()) error = file_.write(text);
  if (error == 0) return;
  is_on_ = false;
  log(LogLevel::Warn, [&] { return fmt::format("the trace {} ends early: {}", path_, std::strerror(error)); });
}

}  // namespace hmshim::interpose
