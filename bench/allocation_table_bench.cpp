// find() at random live addresses, beside random reads of a plain array as large as the table's words for the same
// blocks: what memory itself costs. Compare find/N with array_walk/N.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "uvm/allocation_table.hpp"

namespace {

using hmshim::policy::kBlockBytes;
using hmshim::uvm::Allocation;
using hmshim::uvm::AllocationTable;

constexpr std::uint64_t kBase = 0x7f0000000000;
constexpr std::size_t kQueries = std::size_t{1} << 16;

// Sizes of one to four blocks and gaps of up to one, as a framework's caching allocator leaves them.
struct Layout {
  explicit Layout(std::size_t count) {
    std::mt19937_64 random(1);
    std::uint64_t at = kBase;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t size = random() % 4 + 1;
      allocations.push_back({.base = at,
                             .bytes = size * kBlockBytes - random() % kBlockBytes,
                             .driver_base = at,
                             .backed_bytes = size * kBlockBytes});
      at += (size + random() % 2) * kBlockBytes;
    }
    blocks = (at - kBase) / kBlockBytes;
  }
  std::vector<Allocation> allocations;
  std::uint64_t blocks;
};

void find(benchmark::State& state) {
  Layout layout(static_cast<std::size_t>(state.range(0)));
  AllocationTable table;
  for (Allocation& allocation : layout.allocations) {
    if (!table.insert(allocation)) return state.SkipWithError("insert failed");
  }
  std::mt19937_64 random(2);
  std::vector<std::uint64_t> queries(kQueries);
  for (std::uint64_t& query : queries) {
    const Allocation& allocation = layout.allocations[random() % layout.allocations.size()];
    query = allocation.base + random() % allocation.bytes;
  }
  std::size_t at = 0;
  std::uint64_t carried = 0;  // always 0, but each address waits for the hit before: latency, not throughput
  for (auto _ : state) {
    const hmshim::uvm::Hit hit = table.find(queries[at++ % kQueries] + carried);
    if (hit.extent == hmshim::policy::kNoExtent) return state.SkipWithError("a live address was missed");
    carried = hit.device;
  }
  benchmark::DoNotOptimize(carried);
}

void array_walk(benchmark::State& state) {
  const Layout layout(static_cast<std::size_t>(state.range(0)));
  std::vector<std::uint64_t> words(layout.blocks);
  benchmark::DoNotOptimize(words.data());
  std::mt19937_64 random(2);
  std::vector<std::uint64_t> queries(kQueries);
  for (std::uint64_t& query : queries) query = random() % words.size();
  std::size_t at = 0;
  std::uint64_t carried = 0;
  for (auto _ : state) carried = words[queries[at++ % kQueries] + carried];
  benchmark::DoNotOptimize(carried);
}

void insert_and_remove(benchmark::State& state) {
  Layout layout(static_cast<std::size_t>(state.range(0)));
  AllocationTable table;
  for (Allocation& allocation : layout.allocations) {
    if (!table.insert(allocation)) return state.SkipWithError("insert failed");
  }
  std::mt19937_64 random(3);
  for (auto _ : state) {
    auto removed = table.remove(layout.allocations[random() % layout.allocations.size()].base);
    if (!removed || !table.insert(*removed)) return state.SkipWithError("an entry was lost");
  }
}

BENCHMARK(find)->Arg(1'000)->Arg(100'000);
BENCHMARK(array_walk)->Arg(1'000)->Arg(100'000);
BENCHMARK(insert_and_remove)->Arg(1'000)->Arg(100'000);

}  // namespace

BENCHMARK_MAIN();
