// Writes down what the program does, as a recording in the trace format of bench/README.md: allocations and their ends,
// launches and copies with the allocations that they name and the time they took, and where the host waited.
//
// Calls are noted in memory, under one short lock: their order over all threads matters. They become lines where the
// guest waits anyway, as those of the report, or at a call that finds the memory for them used up. The duration of a
// call is the time between two events of the library's own around it. There are kEventPairs of them; a call that finds
// none free takes the mean of the earlier calls that look like it, and says so.
//
// Without HMSHIM_TRACE every member costs one load. Members may be called from any thread and throw nothing: what goes
// wrong costs lines, never the guest.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interpose/captures.hpp"
#include "interpose/kernel_args.hpp"
#include "interpose/output_file.hpp"
#include "policy/vocabulary.hpp"
#include "uvm/driver_api.hpp"

namespace hmshim::interpose {

class TraceRecorder {
 public:
  // `path`: "" for none. Nothing is created before the first line is written.
  TraceRecorder(const uvm::DriverApi& driver, const Captures& captures, std::string path, std::string_view program);
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // After the guest's allocation has been made; `extent` is kNoExtent where launches will not be seen to name it.
  void allocated(std::uint64_t address, std::uint64_t bytes, policy::ExtentId extent) noexcept;
  // Before the free: afterwards another thread may be given the same address. Unknown addresses are ignored.
  void freed(std::uint64_t address) noexcept;

  // A call under way: made just before it, gone just after it.
  class Running {
   public:
    Running() = default;
    Running(TraceRecorder& recorder, std::int32_t pair, CUstream stream) noexcept
        : recorder_(&recorder), pair_(pair), stream_(stream) {}
    Running(Running&& other) noexcept
        : recorder_(std::exchange(other.recorder_, nullptr)), pair_(other.pair_), stream_(other.stream_) {}
    Running& operator=(Running&&) = delete;
    [[nodiscard]] bool is_measured() const noexcept { return recorder_ != nullptr; }
    ~Running() {
      if (recorder_ != nullptr) recorder_->end(pair_, stream_);
    }

   private:
    TraceRecorder* recorder_ = nullptr;
    std::int32_t pair_ = 0;
    CUstream stream_ = nullptr;
  };
  // `signature`: the same for calls that may be expected to take the same time. `function`: null for a graph.
  [[nodiscard]] Running launch(const void* function, KernelLayouts& kernels, std::uint64_t signature,
                               std::span<const policy::ExtentId> extents, CUstream stream) noexcept;
  [[nodiscard]] Running copy(std::span<const policy::ExtentId> extents, CUstream stream) noexcept;

  // The guest has waited for the device.
  void waited() noexcept;
  // A module has been unloaded: its handles may come back as something else.
  void forget_kernels() noexcept;
  // Before a context ends: our events may be its.
  void leave_context() noexcept;
  // Writes the rest. Nothing is recorded any more.
  void finish() noexcept;
  // In a forked child: the file is the parent's.
  void forget_after_fork() noexcept;

 private:
  static constexpr std::size_t kEventPairs = 1024;
  using PairIndex = std::int32_t;
  static constexpr PairIndex kNoPair = -1;

  struct Pair {
    CUevent begin = nullptr;
    CUevent end = nullptr;
    bool is_good = false;  // both have been recorded; to be read once has_ended
    std::atomic<bool> has_ended{false};
  };
  enum class Kind : std::uint8_t { Allocated, Freed, Call, Waited };
  struct Note {
    Kind kind;
    std::uint8_t stream = 0;
    PairIndex pair = kNoPair;
    std::uint32_t operands = 0;
    std::uint64_t subject = 0;    // of Call its name, else the tensor
    std::uint64_t magnitude = 0;  // of Call its signature, of Allocated bytes
  };
  struct Batch {
    std::vector<Note> notes;
    std::vector<std::uint64_t> operands;  // tensors, note by note
    std::size_t written_notes = 0;
    std::size_t written_operands = 0;
    void forget_written();
  };
  struct Tensor {
    std::uint64_t id;
    policy::ExtentId extent;
  };
  struct Mean {
    double sum_us = 0;
    std::uint64_t count = 0;
  };
  enum class Timing : std::uint8_t { Pending, Failed, Measured };

  [[nodiscard]] bool is_on() const noexcept { return is_on_.load(std::memory_order_relaxed); }
  void give_up() noexcept;
  [[nodiscard]] Running begin(std::uint32_t name, std::uint64_t signature, std::span<const policy::ExtentId> extents,
                              CUstream stream);
  void end(PairIndex pair, CUstream stream) noexcept;
  [[nodiscard]] PairIndex start_pair(CUstream stream);
  void give_back(PairIndex pair);
  [[nodiscard]] std::uint32_t name_of(const void* function, KernelLayouts& kernels);
  [[nodiscard]] std::uint8_t number_of(CUstream stream);

  void flush_if_full();
  void flush(bool is_last);
  void write_notes(bool is_last);
  [[nodiscard]] bool add_call(const Note& note, std::span<const std::uint64_t> operands, bool is_forced);
  [[nodiscard]] Timing timing_of(PairIndex pair, float& duration_ms) const noexcept;
  void write(std::string_view text);

  const uvm::DriverApi& driver_;
  const Captures& captures_;
  const std::string path_;
  const std::string program_;
  std::atomic<bool> is_on_;
  const std::unique_ptr<Pair[]> pairs_;

  std::mutex mutex_;  // guards what follows; no driver call is made under it
  Batch batch_;
  std::uint64_t next_tensor_ = 0;
  std::unordered_map<std::uint64_t, Tensor> tensors_;  // by address
  std::vector<std::uint64_t> tensor_of_;               // by ExtentId
  std::vector<std::string> names_;
  std::unordered_map<const void*, std::uint32_t> name_of_;  // by handle
  std::vector<CUstream> streams_;
  std::vector<PairIndex> free_pairs_;

  std::mutex file_mutex_;  // taken before mutex_; guards what follows
  Batch backlog_;
  std::vector<PairIndex> abandoned_pairs_;         // their calls were written before they had ended
  std::unordered_map<std::uint64_t, Mean> means_;  // by signature
  std::vector<std::string> known_names_;           // as many of names_ as have been needed
  std::string text_;
  OutputFile file_;
  bool was_opened_ = false;
  std::uint64_t calls_ = 0;
  std::uint64_t estimated_ = 0;
};

}  // namespace hmshim::interpose
