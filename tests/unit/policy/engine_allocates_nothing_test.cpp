// The launch path of a guest must not allocate: operator new is counted for this whole test program.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "policy/engine.hpp"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

// Not inlined: seen through, a call of free() on what operator new gave looks like a mistake to the compiler.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace hmshim::policy {
namespace {

TEST(EngineAllocatesNothing, in_steady_launches_with_and_without_eviction) {
  constexpr ExtentId kExtents = 64;
  for (const std::uint64_t budget_blocks : {kExtents, kExtents / 2}) {
    Engine engine({.policy = "on_demand", .budget_bytes = budget_blocks * kBlockBytes});
    for (ExtentId id = 0; id < kExtents; ++id) engine.allocated({id, kBlockBytes});
    Actions actions;
    Tick tick = 0;
    const auto iterate = [&](int times) {
      for (int i = 0; i < times; ++i) {
        for (ExtentId id = 0; id + 1 < kExtents; ++id) {
          const ExtentId touched[] = {id, id + 1};
          actions.clear();
          engine.launch({tick, id, tick, touched}, actions);
          ++tick;
        }
      }
    };
    iterate(3);
    const std::uint64_t before = allocations.load();
    iterate(2000);
    EXPECT_EQ(allocations.load(), before);
    EXPECT_EQ(engine.iterations().period_launches(), kExtents - 1);
    EXPECT_EQ(engine.totals().demotions > 0, budget_blocks < kExtents);
  }
  EXPECT_GT(allocations.load(), 0U);  // the counter counts
}

}  // namespace
}  // namespace hmshim::policy
