// What a program that repeats will touch next, from the iteration before. The knowledge of the baselines: real systems
// have it from tables that fill as the program runs (DeepUM) or from a scheduler (MSched).
//
// Temporaries are known by their place - the i-th operand of the k-th launch - because their ExtentIds change from one
// iteration to the next. An iteration may end anywhere in the program's own, so temporaries may live across its end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/extents.hpp"
#include "policy/policy.hpp"

namespace hmshim::policy {

class Foresight {
 public:
  static constexpr Tick kNever = ~Tick{0};

  // Before each launch, in order; copies are none.
  void observe(const Extents& extents, const Demand& demand);

  // Appends what the launches `first` to `last` after the observed one touch, in order, as far as it is alive now.
  // Nothing while there is no iteration to go by, or the program does something else than in that.
  void upcoming(std::uint32_t first, std::uint32_t last, std::vector<ExtentId>& touched) const;
  // The most by which what is alive will have grown in so many launches after the observed one.
  [[nodiscard]] std::uint64_t growth_bytes(std::uint32_t launches) const;
  // The iteration it goes by, for who plans it as a whole. An extent of it is a slot, whatever its id in this round.
  using Slot = std::uint32_t;
  struct Life {
    bool is_persistent;
    std::uint32_t birth;  // launch; of what persists, 0
    // Launches that use it, rising, each counted from the birth: as ages.
    std::vector<std::uint32_t> uses;
    std::uint64_t bytes;
  };
  // By slot; none while there is no iteration to go by, or the program does something else.
  [[nodiscard]] std::span<const Life> lives() const noexcept {
    return is_in_step_ ? std::span(lives_) : std::span<const Life>();
  }
  [[nodiscard]] std::uint32_t launches() const noexcept { return static_cast<std::uint32_t>(book_.launches.size()); }
  [[nodiscard]] std::uint32_t position() const noexcept { return position_; }  // of the observed launch
  // As Foreknowledge has it; 0 where it has not.
  [[nodiscard]] std::uint64_t duration_ns(std::uint32_t launch) const noexcept {
    return book_.launches[launch].duration_ns;
  }
  // That has the slot now, or had it last; kNoExtent if another has its memory.
  [[nodiscard]] ExtentId extent(Slot slot) const noexcept {
    const ExtentId extent = extent_of_[slot];
    return extent != kNoExtent && slot_of_[extent] == slot ? extent : kNoExtent;
  }

  static constexpr Slot kNoSlot = ~Slot{0};
  [[nodiscard]] Slot slot(ExtentId extent) const noexcept {
    return extent < slot_of_.size() ? slot_of_[extent] : kNoSlot;
  }

  // Launches from the observed one to the next that touches the extent; kNever where none is known.
  [[nodiscard]] Tick next_use(ExtentId extent) const;

 private:
  struct Operand {
    ExtentId id;
    std::uint64_t allocated_at;
    std::uint64_t bytes;
  };
  struct Recorded {
    std::uint64_t signature;
    std::uint32_t first_operand;
    std::uint64_t duration_ns = 0;
  };
  struct Recording {
    std::vector<Recorded> launches;
    std::vector<Operand> operands;
    std::uint64_t began_at = 0;  // ordinal of its first launch
    bool is_whole = false;       // it began at a boundary

    // Allocated since the last launch before the recording, or later.
    [[nodiscard]] bool has_seen_birth_of(const Operand& operand) const noexcept {
      return operand.allocated_at + 1 >= began_at;
    }
    [[nodiscard]] std::uint32_t operands_end(std::size_t launch) const noexcept {
      return launch + 1 < launches.size() ? launches[launch + 1].first_operand
                                          : static_cast<std::uint32_t>(operands.size());
    }
  };
  void write_book();
  void bind(Slot slot, ExtentId extent);
  [[nodiscard]] std::uint32_t age(const Life& life, std::uint32_t launch) const noexcept {
    const auto launches = static_cast<std::uint32_t>(book_.launches.size());
    return (launch + launches - life.birth) % launches;
  }

  Recording recording_;  // the round under way
  Recording book_;       // the one before: the last that was whole
  bool begins_ = false;  // the next launch begins an iteration

  // Of the book.
  std::vector<Slot> slots_;                // by operand
  std::vector<Life> lives_;                // by slot
  std::vector<std::uint64_t> born_bytes_;  // by launch: of temporaries
  std::vector<std::uint64_t> dead_bytes_;  // by launch: of those whose last use it is
  // This round's ids.
  std::vector<ExtentId> extent_of_;  // by slot
  std::vector<Slot> slot_of_;        // by ExtentId
  std::uint32_t position_ = 0;       // of the observed launch in the book
  bool is_in_step_ = false;          // so far this round does what the book says
};

}  // namespace hmshim::policy
