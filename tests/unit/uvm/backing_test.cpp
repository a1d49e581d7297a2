#include "uvm/backing.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/unit/uvm/fake_driver.hpp"
#include "tests/unit/uvm/fake_host.hpp"

namespace hmshim::uvm {
namespace {

using policy::kBlockBytes;

constexpr std::uint64_t kContext = 0xc0;
constexpr std::uint64_t kDeviceBytes = 64 * kBlockBytes;

// A device of 64 blocks on a host without any memory to spare, unless said otherwise.
struct World {
  explicit World(std::uint64_t host_bytes = 0) : host(host_bytes) {}
  [[nodiscard]] bool is_balanced() const {
    const LiveBytes live = budget.live_bytes(0);
    return driver.live().empty() && table.live() == 0 && live.managed == 0 && live.device_backed == 0;
  }

  FakeDriver driver;
  FakeHost host;
  DriverApi api = driver.api();
  AllocationTable table;
  DeviceBudget budget{std::vector<DeviceShare>{{kDeviceBytes, {}}}, {}, host.memory()};
  BackingStore store{api, table, budget};
};

TEST(BackingStore, managed_memory_is_whole_blocks_and_found_by_the_size_asked_for) {
  World world;
  const Result<Allocation> allocation = world.store.allocate(kBlockBytes + 5, 0, kContext, Backing::Managed);
  ASSERT_TRUE(allocation);
  EXPECT_EQ(allocation->bytes, kBlockBytes + 5);
  EXPECT_EQ(allocation->backed_bytes, 2 * kBlockBytes);
  EXPECT_EQ(allocation->context, kContext);
  EXPECT_EQ(world.driver.live().at(allocation->driver_base), 2 * kBlockBytes);
  EXPECT_EQ(world.budget.live_bytes(0).managed, 2 * kBlockBytes);
  EXPECT_EQ(world.table.find(allocation->base + kBlockBytes + 4).extent, allocation->extent);
  ASSERT_TRUE(world.store.free(allocation->base));
  EXPECT_TRUE(world.is_balanced());
}

TEST(BackingStore, device_memory_is_taken_as_asked_and_counted) {
  World world;
  const Result<Allocation> allocation = world.store.allocate(300, 0, kContext, Backing::Device);
  ASSERT_TRUE(allocation);
  EXPECT_EQ(world.driver.live().at(allocation->driver_base), 300u);
  EXPECT_EQ(world.budget.live_bytes(0).device_backed, 300u);
  EXPECT_EQ(world.table.find(allocation->base).extent, policy::kNoExtent);
  ASSERT_TRUE(world.store.free(allocation->base));
  EXPECT_TRUE(world.is_balanced());
}

TEST(BackingStore, remote_memory_is_advised_to_stay_on_the_host_and_has_no_extent) {
  for (const bool is_old_abi : {false, true}) {
    World world(16 * kDeviceBytes);
    if (is_old_abi) world.api.cuMemAdvise_v2 = nullptr;
    const std::uint64_t bytes = 2 * kDeviceBytes;
    const Result<Allocation> allocation = world.store.allocate(bytes - 7, 0, kContext, Backing::Remote);
    ASSERT_TRUE(allocation);
    EXPECT_EQ(allocation->extent, policy::kNoExtent);
    EXPECT_EQ(world.driver.advice, (std::vector<FakeDriver::Advice>{
                                       {allocation->base, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU},
                                       {allocation->base, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, 0}}));
    EXPECT_EQ(world.budget.live_bytes(0).managed, bytes);
    ASSERT_TRUE(world.store.free(allocation->base));
    EXPECT_TRUE(world.is_balanced());
  }
}

TEST(BackingStore, remote_memory_that_the_driver_takes_no_advice_on_is_given_back) {
  for (const int call : {2, 3}) {  // the first allocates
    World world(16 * kDeviceBytes);
    world.driver.fail_call(call);
    EXPECT_FALSE(world.store.allocate(2 * kDeviceBytes, 0, kContext, Backing::Remote));
    EXPECT_TRUE(world.is_balanced());
  }
}

TEST(BackingStore, a_driver_that_gives_less_alignment_is_asked_for_a_block_more) {
  World world;
  world.driver.misalignment_bytes = 65536;
  const Result<Allocation> allocation = world.store.allocate(kBlockBytes, 0, kContext, Backing::Managed);
  ASSERT_TRUE(allocation);
  EXPECT_EQ(allocation->base % kBlockBytes, 0u);
  EXPECT_EQ(allocation->backed_bytes, 2 * kBlockBytes);
  EXPECT_EQ(world.driver.live(), (std::map<std::uint64_t, std::uint64_t>{{allocation->driver_base, 2 * kBlockBytes}}));
  EXPECT_LE(allocation->base + kBlockBytes, allocation->driver_base + allocation->backed_bytes);
  EXPECT_EQ(world.budget.live_bytes(0).managed, 2 * kBlockBytes);
  ASSERT_TRUE(world.store.free(allocation->base));
  EXPECT_TRUE(world.is_balanced());
}

TEST(BackingStore, beyond_the_budget_the_guest_is_out_of_memory_and_the_driver_is_not_asked) {
  World world;
  const Result<Allocation> allocation = world.store.allocate(kDeviceBytes + 1, 0, kContext, Backing::Managed);
  ASSERT_FALSE(allocation);
  EXPECT_EQ(allocation.error().code, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allocation.error().reason, Reason::HostMemory);
  EXPECT_TRUE(world.is_balanced());
}

TEST(BackingStore, a_size_that_would_wrap_when_rounded_is_out_of_memory) {
  World world;
  for (const std::uint64_t bytes :
       {~std::uint64_t{0}, ~std::uint64_t{0} - kBlockBytes, ~std::uint64_t{0} - kBlockBytes + 2}) {
    EXPECT_EQ(world.store.allocate(bytes, 0, kContext, Backing::Managed).code(), CUDA_ERROR_OUT_OF_MEMORY) << bytes;
  }
  EXPECT_TRUE(world.is_balanced());
}

TEST(BackingStore, size_zero_gets_the_drivers_own_answer) {
  World world;
  EXPECT_EQ(world.store.allocate(0, 0, kContext, Backing::Managed).code(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(world.is_balanced());
}

TEST(BackingStore, an_address_that_is_not_ours_is_said_to_be_so_and_the_driver_is_not_asked) {
  World world;
  const Result<Allocation> allocation = world.store.allocate(kBlockBytes, 0, kContext, Backing::Managed);
  ASSERT_TRUE(allocation);
  for (const std::uint64_t address : {std::uint64_t{0}, std::uint64_t{0x1234}, allocation->base + 1}) {
    const Result<Departed> freed = world.store.free(address);
    ASSERT_FALSE(freed);
    EXPECT_EQ(freed.error().reason, Reason::NotOurs);
  }
  EXPECT_EQ(world.driver.live().size(), 1u);
}

TEST(BackingStore, an_entry_comes_back_when_the_driver_refuses_to_free) {
  World world;
  const Result<Allocation> allocation = world.store.allocate(kBlockBytes, 0, kContext, Backing::Managed);
  ASSERT_TRUE(allocation);
  world.driver.fail_call(1);
  const Result<Departed> freed = world.store.free(allocation->base);
  ASSERT_FALSE(freed);
  EXPECT_EQ(freed.error().code, CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(world.table.find(allocation->base).extent, allocation->extent);
  EXPECT_EQ(world.budget.live_bytes(0).managed, kBlockBytes);
  ASSERT_TRUE(world.store.free(allocation->base));
  EXPECT_TRUE(world.is_balanced());
}

TEST(BackingStore, an_extent_is_not_reused_while_its_departure_is_being_told) {
  World world;
  const Result<Allocation> first = world.store.allocate(kBlockBytes, 0, kContext, Backing::Managed);
  ASSERT_TRUE(first);
  {
    const Result<Departed> departed = world.store.free(first->base);
    ASSERT_TRUE(departed);
    EXPECT_EQ((*departed)->extent, first->extent);
    const Result<Allocation> second = world.store.allocate(kBlockBytes, 0, kContext, Backing::Managed);
    ASSERT_TRUE(second);
    EXPECT_NE(second->extent, first->extent);
  }
  const Result<Allocation> third = world.store.allocate(kBlockBytes, 0, kContext, Backing::Managed);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->extent, first->extent);
}

TEST(BackingStore, allocations_die_with_their_context_without_a_free) {
  World world;
  ASSERT_TRUE(world.store.allocate(kBlockBytes, 0, kContext, Backing::Managed));
  ASSERT_TRUE(world.store.allocate(100, 0, kContext, Backing::Device));
  const Result<Allocation> other = world.store.allocate(kBlockBytes, 0, 0xdd, Backing::Managed);
  ASSERT_TRUE(other);
  std::uint64_t live_during_destroy = 0;
  const auto departed = world.store.destroy_context(kContext, [&] {
    live_during_destroy = world.table.live();
    return CUDA_SUCCESS;
  });
  ASSERT_TRUE(departed);
  EXPECT_EQ(departed->size(), 2u);
  EXPECT_EQ(live_during_destroy, 1u) << "entries leave before the driver may reuse their addresses";
  EXPECT_EQ(world.budget.live_bytes(0).managed, kBlockBytes);
  EXPECT_EQ(world.budget.live_bytes(0).device_backed, 0u);
  EXPECT_EQ(world.driver.live().size(), 3u) << "the driver frees a dead context's memory itself";
}

TEST(BackingStore, a_context_that_could_not_be_destroyed_keeps_its_allocations) {
  World world;
  const Result<Allocation> allocation = world.store.allocate(kBlockBytes, 0, kContext, Backing::Managed);
  ASSERT_TRUE(allocation);
  const auto departed = world.store.destroy_context(kContext, [] { return CUDA_ERROR_INVALID_CONTEXT; });
  ASSERT_FALSE(departed);
  EXPECT_EQ(departed.error().code, CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(world.table.find(allocation->base).extent, allocation->extent);
  EXPECT_EQ(world.budget.live_bytes(0).managed, kBlockBytes);
}

// A guest that frees what it got and frees again what could not be freed: whichever driver call fails, the guest sees
// the driver's error and nothing is left over in the end. With a driver of poor alignment too: that path makes more
// calls.
TEST(BackingStore, whichever_driver_call_fails_the_balance_returns_to_zero) {
  World world;
  for (const std::uint64_t misalignment_bytes : {0, 4096}) {
    world.driver.misalignment_bytes = misalignment_bytes;
    int failures_seen = 0;
    for (int k = 1;; ++k) {
      world.driver.fail_call(k);
      std::vector<std::uint64_t> bases;
      int errors = 0;
      for (const auto& [bytes, backing] : {std::pair{3 * kBlockBytes, Backing::Managed},
                                           {std::uint64_t{64}, Backing::Device},
                                           {std::uint64_t{7}, Backing::Managed}}) {
        const Result<Allocation> allocation = world.store.allocate(bytes, 0, kContext, backing);
        if (allocation) bases.push_back(allocation->base);
        errors += allocation.code() == CUDA_ERROR_ILLEGAL_STATE;
      }
      for (const std::uint64_t base : bases) {
        if (const Result<Departed> freed = world.store.free(base); !freed) {
          ++errors;
          ASSERT_TRUE(world.store.free(base));
        }
      }
      EXPECT_EQ(world.table.live(), 0u) << k;
      EXPECT_EQ(world.budget.live_bytes(0).managed, 0u) << k;
      EXPECT_EQ(world.budget.live_bytes(0).device_backed, 0u) << k;
      if (errors == 0 && !world.driver.has_failed()) break;
      failures_seen += errors;
      world.driver.fail_call(0);
      if (k > 20) break;
    }
    EXPECT_GE(failures_seen, 6);
  }
}

TEST(BackingStore, threads_that_allocate_beyond_the_budget_share_it_exactly) {
  World world;
  std::vector<std::thread> threads;
  std::vector<std::vector<std::uint64_t>> bases(8);
  for (std::size_t thread = 0; thread < bases.size(); ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 16; ++i) {
        if (const Result<Allocation> allocation = world.store.allocate(kBlockBytes, 0, kContext, Backing::Managed)) {
          bases[thread].push_back(allocation->base);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world.table.live(), kDeviceBytes / kBlockBytes);
  for (const auto& mine : bases) {
    for (const std::uint64_t base : mine) EXPECT_TRUE(world.store.free(base));
  }
  EXPECT_TRUE(world.is_balanced());
}

}  // namespace
}  // namespace hmshim::uvm
