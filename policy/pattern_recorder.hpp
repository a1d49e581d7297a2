// Writes down what the program does, so that an iteration that has come round twice can be planned.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/access_pattern.hpp"
#include "policy/event.hpp"
#include "policy/iteration_detector.hpp"
#include "policy/vocabulary.hpp"

namespace hmshim::policy {

// An operand that no plan concerns itself with: see Iteration::operands.
inline constexpr PatternExtent kUnplanned = ~PatternExtent{0};

// One steady iteration as the program's calls show it, launch by launch. What persists is known by its ExtentId, what
// comes and goes by its place: the i-th operand of launch k.
struct Iteration {
  struct Launch {
    std::uint64_t signature;
    std::uint32_t first_operand;
    std::uint8_t stream;   // see policy::Launch
    bool is_part = false;  // likewise
  };
  struct Extent {
    std::uint64_t bytes;
    LaunchIndex born;       // kPersistent, or the launch that touches it first
    std::uint32_t operand;  // the first that names it; of a temporary, that of its birth
    ExtentId id;            // of what persists; else kNoExtent
  };

  std::vector<Launch> launches;
  // By launch, in the order in which it names them. A launch that reads the last round's temporary and writes this
  // round's in the same place names one extent twice: the older operand is kUnplanned, it is not needed any more.
  std::vector<PatternExtent> operands;
  std::vector<Extent> extents;

  [[nodiscard]] std::span<const PatternExtent> operands_of(LaunchIndex launch) const noexcept {
    const std::size_t begin = launches[launch].first_operand;
    const std::size_t end = launch + 1 < launches.size() ? launches[launch + 1].first_operand : operands.size();
    return {operands.data() + begin, end - begin};
  }
};

// Bounded memory: rings that grow to the longest period that the detector knows, twice; about 12 bytes an operand and
// 24 a launch.
class PatternRecorder {
 public:
  void allocated(ExtentId extent, std::uint64_t bytes);
  void freed(ExtentId extent);
  void launch(const Launch& launch);
  void copy(const Launch& launch);

  // An iteration of `launches` launches, by itself or with something in between, ends here.
  void end_iteration(std::uint64_t launches);
  // The last iteration, if it did the same as the one before it with data that comes round: what persists in the same
  // place, temporaries born in the same place. What only one of the two has - a logged value, an evaluation - is left
  // out if it is in one piece. Nothing if they differ otherwise.
  [[nodiscard]] std::optional<Iteration> last_iteration() const;
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  // Numbered from 0 by order of arrival; the oldest make room when the ring is full.
  template <class T>
  class Ring {
   public:
    explicit Ring(std::size_t most_slots) : most_slots_(most_slots) {}
    void push(const T& value);
    [[nodiscard]] const T& operator[](std::uint64_t at) const noexcept { return slots_[at % slots_.size()]; }
    [[nodiscard]] std::uint64_t end() const noexcept { return end_; }
    [[nodiscard]] std::uint64_t begin() const noexcept { return end_ - std::min<std::uint64_t>(end_, slots_.size()); }
    [[nodiscard]] std::size_t memory_bytes() const noexcept { return slots_.capacity() * sizeof(T); }

   private:
    std::size_t most_slots_;
    std::vector<T> slots_;
    std::uint64_t end_ = 0;
  };
  // An allocation is one extent from its birth to its end; ids are used again, instances are not.
  struct Operand {
    ExtentId id;
    std::uint32_t instance;
    std::uint32_t blocks;
  };
  struct Record {
    std::uint64_t signature;
    std::uint64_t first_operand;
    std::uint32_t launches;  // so far, modulo 2^32; copies do not count
    std::uint8_t stream;
    bool is_part;
  };
  struct Live {
    std::uint32_t instance = 0;  // 0: not allocated here
    std::uint32_t blocks = 0;
  };

  // The calls of an iteration, by their places in records_.
  using Calls = std::vector<std::uint64_t>;

  void record(const Launch& event);
  [[nodiscard]] std::uint64_t end_of_launch(std::uint32_t launch) const noexcept;
  [[nodiscard]] std::uint64_t operands_end(std::uint64_t record) const noexcept;
  [[nodiscard]] bool are_alike(std::uint64_t a, std::uint64_t b) const noexcept;
  enum class Insertion : std::uint8_t { Early, Late };
  [[nodiscard]] bool align(Calls& before, Calls& now, Insertion insertion) const;
  [[nodiscard]] std::optional<Iteration> repetition(const Calls& before, const Calls& now) const;
  [[nodiscard]] std::vector<Operand> operands_of(const Calls& calls) const;

  static constexpr std::size_t kMostLaunches = 2 * (IterationDetector::kMaxPeriodLaunches + 1);
  static constexpr std::size_t kOperandsPerLaunch = 4;

  Ring<Record> records_{kMostLaunches};
  Ring<Operand> operands_{kMostLaunches * kOperandsPerLaunch};
  std::vector<Live> live_;  // by ExtentId
  std::uint32_t last_instance_ = 0;
  std::uint32_t launches_ = 0;
  // Where the last iteration and the one before it begin, and where the last ends.
  std::uint64_t begin_before_ = 0;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
};

}  // namespace hmshim::policy
