#include "uvm/block_runs.hpp"

#include <algorithm>

namespace hmshim::uvm {

using policy::kBlockBytes;

void BlockRuns::add_slab(const Slab& slab, std::uint64_t blocks) {
  SlabRuns added{.slab = slab, .runs = std::vector<std::unique_ptr<Run>>(blocks)};
  added.runs[0] = std::make_unique<Run>(Run{.base = slab.base, .blocks = blocks, .slab = slab.base});
  Run& run = *added.runs[0];
  bins_.try_emplace(blocks);
  slabs_.emplace(slab.base, std::move(added));
  link(run);
  reserved_bytes_ += blocks * kBlockBytes;
}

std::vector<Run*> BlockRuns::runs_of(std::uint64_t slab) const {
  std::vector<Run*> runs;
  for (const auto& run : slabs_.at(slab).runs) {
    if (run != nullptr) runs.push_back(run.get());
  }
  return runs;
}

std::vector<std::uint64_t> BlockRuns::idle_slabs() const {
  std::vector<std::uint64_t> idle;
  for (const auto& [base, slab] : slabs_) {
    const auto is_free = [](const auto& run) { return run == nullptr || run->state == Run::State::Free; };
    if (std::ranges::all_of(slab.runs, is_free)) idle.push_back(base);
  }
  return idle;
}

Slab BlockRuns::remove_slab(std::uint64_t base) {
  for (Run* run : runs_of(base)) unlink(*run);
  const auto found = slabs_.find(base);
  const Slab slab = found->second.slab;
  reserved_bytes_ -= found->second.runs.size() * kBlockBytes;
  recent_ = nullptr;
  slabs_.erase(found);
  return slab;
}

std::vector<Slab> BlockRuns::remove_all() {
  std::vector<Slab> slabs;
  for (const auto& [base, slab] : slabs_) slabs.push_back(slab.slab);
  slabs_.clear();
  bins_.clear();
  recent_ = nullptr;
  reserved_bytes_ = 0;
  return slabs;
}

const BlockRuns::SlabRuns* BlockRuns::slab_of(std::uint64_t address) const noexcept {
  const auto holds = [address](const SlabRuns& slab) {
    return address - slab.slab.base < slab.runs.size() * kBlockBytes;
  };
  if (recent_ != nullptr && holds(*recent_)) return recent_;
  const auto next = slabs_.upper_bound(address);
  if (next == slabs_.begin() || !holds(std::prev(next)->second)) return nullptr;
  return recent_ = &std::prev(next)->second;
}

Run* BlockRuns::at(std::uint64_t address) const noexcept {
  const SlabRuns* slab = slab_of(address);
  if (slab == nullptr || (address - slab->slab.base) % kBlockBytes != 0) return nullptr;
  return slab->runs[(address - slab->slab.base) / kBlockBytes].get();
}

Run* BlockRuns::holder(std::uint64_t address) const noexcept {
  const SlabRuns* slab = slab_of(address);
  if (slab == nullptr) return nullptr;
  std::uint64_t block = (address - slab->slab.base) / kBlockBytes;
  while (slab->runs[block] == nullptr) --block;  // block 0 begins a run
  return slab->runs[block].get();
}

void BlockRuns::take(Run& run, Run::State state) noexcept {
  unlink(run);
  run.state = state;
}

void BlockRuns::give(Run& run) noexcept {
  link(run);
  run.state = Run::State::Free;
}

Run& BlockRuns::cut(Run& run, std::uint64_t blocks) {
  // A run's bin exists from the start, so that giving it back cannot fail.
  bins_.try_emplace(blocks);
  bins_.try_emplace(run.blocks - blocks);
  auto rest = std::make_unique<Run>(run);
  rest->base = run.base + blocks * kBlockBytes;
  rest->blocks = run.blocks - blocks;
  rest->extent = policy::kNoExtent;
  run.blocks = blocks;
  std::unique_ptr<Run>& slot = slot_of(*rest);
  slot = std::move(rest);
  return *slot;
}

void BlockRuns::link(Run& run) noexcept {
  Run*& newest = bins_.find(run.blocks)->second;
  run.older = newest;
  run.newer = nullptr;
  if (newest != nullptr) newest->newer = &run;
  newest = &run;
}

void BlockRuns::unlink(Run& run) noexcept {
  if (run.newer != nullptr) {
    run.newer->older = run.older;
  } else {
    bins_.find(run.blocks)->second = run.older;
  }
  if (run.older != nullptr) run.older->newer = run.newer;
  run.newer = run.older = nullptr;
}

}  // namespace hmshim::uvm
