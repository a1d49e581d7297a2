// The addresses of a pool: slabs cut into runs of whole 2 MiB blocks, and the free runs found by size. Bookkeeping
// only, of one owner who holds the lock; it never touches the memory.
//
// A freed run keeps its place and its extent and waits for an allocation of its size: training iterations repeat their
// sizes, so in the steady state nothing is cut or joined, and an address means the same tensor in every iteration. Free
// neighbours are joined only when nothing else fits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "policy/vocabulary.hpp"
#include "uvm/stream_order.hpp"

namespace hmshim::uvm {

struct SmallChunk;

struct Run {
  enum class State : std::uint8_t {
    Free,
    Held,  // free but out of reach: a discard or a wait between streams is on its way, or it is pinned
    Used,
  };

  std::uint64_t base = 0;
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;                      // asked for by the tenant; of the last one while free
  policy::ExtentId extent = policy::kNoExtent;  // kNoExtent: nothing was ever there, or it is device memory
  StreamOrder::Point freed{};
  State state = State::Free;
  bool is_discarded = false;    // its contents are gone: prefetch before the next use
  std::uint32_t pins = 0;       // who may use the memory even when its tensor is freed
  SmallChunk* chunk = nullptr;  // the small tensors that share it
  std::uint64_t slab = 0;       // base address of its slab
  Run* newer = nullptr;         // neighbours among the free runs of this size
  Run* older = nullptr;

  [[nodiscard]] std::uint64_t end() const noexcept { return base + blocks * policy::kBlockBytes; }
};

// Memory as the driver gave it, begun on a block boundary.
struct Slab {
  std::uint64_t base = 0;
  std::uint64_t driver_base = 0;
  std::uint64_t backed_bytes = 0;
};

class BlockRuns {
 public:
  // The slab's `blocks` blocks become one free run.
  void add_slab(const Slab& slab, std::uint64_t blocks);
  // Slabs of which every run is free.
  [[nodiscard]] std::vector<std::uint64_t> idle_slabs() const;
  // All runs of a slab, in the order of their addresses.
  [[nodiscard]] std::vector<Run*> runs_of(std::uint64_t slab) const;
  // Forgets a slab and its runs, which are free.
  Slab remove_slab(std::uint64_t slab);
  // Every slab, forgotten, whatever it holds.
  [[nodiscard]] std::vector<Slab> remove_all();

  // The run that begins at the address; the run, or the slab, that holds it.
  [[nodiscard]] Run* at(std::uint64_t address) const noexcept;
  [[nodiscard]] Run* holder(std::uint64_t address) const noexcept;
  [[nodiscard]] bool owns(std::uint64_t address) const noexcept { return slab_of(address) != nullptr; }

  // The free run to use for `blocks`: the smallest that is enough and among those the newest, of which `rank` says how
  // good it is: 0 not at all, more is better, kBestRank ends the search.
  static constexpr int kBestRank = 3;
  template <class Rank>
  [[nodiscard]] Run* find_free(std::uint64_t blocks, Rank rank) const {
    for (auto bin = bins_.lower_bound(blocks); bin != bins_.end(); ++bin) {
      Run* best = nullptr;
      int best_rank = 0;
      for (Run* run = bin->second; run != nullptr && best_rank < kBestRank; run = run->older) {
        if (const int rank_of_run = rank(*run); rank_of_run > best_rank) {
          best = run;
          best_rank = rank_of_run;
        }
      }
      if (best != nullptr) return best;
    }
    return nullptr;
  }
  // Takes a free run from where find_free() looks, puts it there as the newest.
  void take(Run& run, Run::State state) noexcept;
  void give(Run& run) noexcept;

  // Cuts a run after `blocks`; the rest is a run of the same kind, in no bin.
  Run& cut(Run& run, std::uint64_t blocks);
  // Groups of two and more neighbours, free and `joinable`, become one each: after `join(group)` the first is made to
  // span all of them, and the others are gone.
  template <class Joinable, class Join>
  void join_neighbours(Joinable joinable, Join join) {
    std::vector<Run*> group;
    for (auto& [base, slab] : slabs_) {
      const auto finish = [&] {
        if (group.size() > 1) merge(group, join);
        group.clear();
      };
      for (std::uint64_t block = 0; block < slab.runs.size();) {
        Run& run = *slab.runs[block];
        block += run.blocks;
        if (run.state == Run::State::Free && joinable(run)) {
          group.push_back(&run);
        } else {
          finish();
        }
      }
      finish();
    }
  }

  [[nodiscard]] std::uint64_t reserved_bytes() const noexcept { return reserved_bytes_; }

 private:
  struct SlabRuns {
    Slab slab;
    std::vector<std::unique_ptr<Run>> runs;  // one entry a block: the run that begins there
  };
  [[nodiscard]] const SlabRuns* slab_of(std::uint64_t address) const noexcept;
  [[nodiscard]] std::unique_ptr<Run>& slot_of(const Run& run) { return slot_of(run.slab, run.base); }
  [[nodiscard]] std::unique_ptr<Run>& slot_of(std::uint64_t slab, std::uint64_t base) {
    return slabs_.at(slab).runs[(base - slab) / policy::kBlockBytes];
  }
  template <class Join>
  void merge(std::span<Run* const> group, Join join) {
    std::uint64_t blocks = 0;
    for (const Run* run : group) blocks += run->blocks;
    bins_.try_emplace(blocks);
    join(group);
    for (Run* run : group) unlink(*run);
    for (Run* run : group.subspan(1)) slot_of(*run).reset();
    group.front()->blocks = blocks;
    link(*group.front());
  }
  void unlink(Run& run) noexcept;
  void link(Run& run) noexcept;

  std::map<std::uint64_t, SlabRuns> slabs_;
  std::map<std::uint64_t, Run*> bins_;  // newest free run by number of blocks; a bin stays when it is empty
  mutable const SlabRuns* recent_ = nullptr;
  std::uint64_t reserved_bytes_ = 0;
};

}  // namespace hmshim::uvm
