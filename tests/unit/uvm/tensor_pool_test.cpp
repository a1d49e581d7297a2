#include "uvm/tensor_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/unit/uvm/fake_driver.hpp"
#include "tests/unit/uvm/fake_host.hpp"

namespace hmshim::uvm {
namespace {

using policy::ExtentId;
using policy::kBlockBytes;
using policy::kNoExtent;
using Kind = FakeDriver::Step::Kind;

constexpr std::uint64_t kContext = 0xc0;
constexpr std::uint64_t kThreshold = 1 << 20;
constexpr std::uint64_t kDeviceBytes = 64 * 4 * kBlockBytes;  // slabs of four blocks
constexpr std::nullopt_t kNoStream = std::nullopt;
const auto kA = reinterpret_cast<CUstream>(std::uintptr_t{0xA});
const auto kB = reinterpret_cast<CUstream>(std::uintptr_t{0xB});

// What the policy would know: bytes of live and of retired extents.
class Books final : public TensorObserver {
 public:
  void allocated(const Allocation& each) noexcept override {
    EXPECT_TRUE(live.emplace(each.extent, each.backed_bytes).second);
    EXPECT_FALSE(retired_.contains(each.extent));
  }
  void retired(const Allocation& each) noexcept override { move(each.extent, live, retired_); }
  void revived(const Allocation& each) noexcept override { move(each.extent, retired_, live); }
  void freed(const Allocation& each) noexcept override { EXPECT_EQ(retired_.erase(each.extent), 1u); }
  void reshaped(std::span<const ExtentId> before, std::span<const Allocation> after) noexcept override {
    std::uint64_t bytes_before = 0, bytes_after = 0;
    for (const ExtentId extent : before) {
      ASSERT_TRUE(retired_.contains(extent));
      bytes_before += retired_.extract(extent).mapped();
    }
    for (const Allocation& each : after) {
      EXPECT_TRUE(retired_.emplace(each.extent, each.backed_bytes).second);
      bytes_after += each.backed_bytes;
    }
    // Untouched memory may be joined in.
    EXPECT_GE(bytes_after, bytes_before);
    ++reshapes;
  }
  [[nodiscard]] bool is_resident(ExtentId extent) const noexcept override { return resident.contains(extent); }
  [[nodiscard]] bool is_capturing() const noexcept override { return captures; }

  std::map<ExtentId, std::uint64_t> live, retired_;
  std::set<ExtentId> resident;
  bool captures = false;
  int reshapes = 0;

 private:
  void move(ExtentId extent, std::map<ExtentId, std::uint64_t>& from, std::map<ExtentId, std::uint64_t>& to) {
    ASSERT_TRUE(from.contains(extent));
    to.insert(from.extract(extent));
  }
};

class Pool : public testing::Test {
 protected:
  Tensor take(std::uint64_t bytes, std::optional<CUstream> stream = kA) {
    const Result<Tensor> tensor = pool.allocate(bytes, stream);
    EXPECT_TRUE(tensor);
    return tensor ? *tensor : Tensor{};
  }
  void give(const Tensor& tensor, std::optional<CUstream> stream = kA) {
    EXPECT_TRUE(pool.free(tensor.address, stream));
  }
  [[nodiscard]] std::size_t count(Kind kind) const {
    return static_cast<std::size_t>(std::ranges::count(driver.steps, kind, &FakeDriver::Step::kind));
  }

  FakeDriver driver;
  FakeHost host{0};
  DriverApi api = driver.api();
  AllocationTable table;
  DeviceBudget budget{std::vector<DeviceShare>{{kDeviceBytes, {}}}, {}, host.memory()};
  BackingStore backing{api, table, budget};
  Books books;
  TensorPool pool{api, table, backing, books, {0, kContext, kDeviceBytes, kThreshold, true}};
};

TEST_F(Pool, each_tensor_is_an_extent_with_its_own_base_and_size) {
  const Tensor a = take(3 * kBlockBytes - 5), b = take(kThreshold);
  EXPECT_NE(a.extent, b.extent);
  EXPECT_EQ(a.address % kBlockBytes, 0u);
  EXPECT_EQ(table.lookup(a.address + 100)->base, a.address);
  EXPECT_EQ(table.lookup(a.address + 100)->bytes, 3 * kBlockBytes - 5);
  EXPECT_EQ(table.find(a.address + 3 * kBlockBytes - 6).extent, a.extent);
  EXPECT_EQ(table.find(a.address + 3 * kBlockBytes - 5).extent, kNoExtent);
  EXPECT_EQ(table.find(b.address).extent, b.extent);
  EXPECT_EQ(driver.live().size(), 1u) << "both lie in one slab";
}

TEST_F(Pool, a_freed_tensor_is_nobodys_and_its_memory_and_extent_go_to_the_next_of_its_size) {
  const Tensor a = take(kBlockBytes);
  give(a);
  EXPECT_FALSE(table.lookup(a.address));
  EXPECT_FALSE(pool.free(a.address, kA)) << "freed twice";
  EXPECT_TRUE(pool.owns(a.address));
  driver.steps.clear();
  const Tensor b = take(kBlockBytes - 7);
  EXPECT_EQ(b.address, a.address);
  EXPECT_EQ(b.extent, a.extent);
  EXPECT_EQ(table.lookup(b.address)->bytes, kBlockBytes - 7);
  EXPECT_EQ(table.find(b.address + kBlockBytes - 7).extent, kNoExtent);
  EXPECT_TRUE(driver.steps.empty()) << "no driver call in the steady state";
  EXPECT_EQ(books.live, (std::map<ExtentId, std::uint64_t>{{a.extent, kBlockBytes}}));
}

TEST_F(Pool, an_address_leads_to_the_live_tensor_around_it) {
  const Tensor large = take(kBlockBytes + 5), small = take(1000);
  EXPECT_EQ(pool.find(large.address + kBlockBytes + 4)->address, large.address);
  EXPECT_EQ(pool.find(large.address)->bytes, kBlockBytes + 5);
  EXPECT_FALSE(pool.find(large.address + kBlockBytes + 5));
  EXPECT_EQ(pool.find(small.address + 999)->address, small.address);
  EXPECT_EQ(pool.find(small.address)->bytes, 1000u);
  EXPECT_FALSE(pool.find(small.address + 1000)) << "the slot is larger";
  give(small);
  give(large);
  EXPECT_FALSE(pool.find(small.address));
  EXPECT_FALSE(pool.find(large.address));
  EXPECT_FALSE(pool.find(1));
}

TEST_F(Pool, the_newest_resident_memory_comes_first) {
  const Tensor a = take(kBlockBytes), b = take(kBlockBytes), c = take(kBlockBytes), d = take(kBlockBytes);
  for (const Tensor& each : {a, b, c}) give(each);  // the slab is full: d stays
  books.resident = {a.extent, b.extent};
  EXPECT_EQ(take(kBlockBytes).address, b.address);
  EXPECT_EQ(take(kBlockBytes).address, a.address);
  EXPECT_EQ(take(kBlockBytes).address, c.address);
  give(d);
}

TEST_F(Pool, a_larger_run_is_cut_and_neighbours_are_joined_when_nothing_else_fits) {
  const Tensor whole = take(4 * kBlockBytes);
  give(whole);
  std::vector<Tensor> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(take(kBlockBytes));
  EXPECT_EQ(driver.live().size(), 1u);
  EXPECT_EQ(books.reshapes, 3);
  for (const Tensor& part : parts) give(part);
  EXPECT_EQ(take(4 * kBlockBytes).address, whole.address);
  EXPECT_EQ(driver.live().size(), 1u);
  EXPECT_EQ(books.live.size(), 1u);
  EXPECT_TRUE(books.retired_.empty());
}

TEST_F(Pool, where_the_device_is_full_small_memory_freed_on_another_stream_is_used_after_waiting) {
  ASSERT_TRUE(pool.note_work(kA));
  ASSERT_TRUE(pool.note_work(kB));
  const Tensor slot = take(700 << 10);
  std::size_t more = 0;
  while (more < 1000 && pool.allocate(700 << 10, kA)) ++more;
  ASSERT_LT(more, 1000u);
  give(slot);
  EXPECT_EQ(take(700 << 10, kB).address, slot.address);
}

TEST_F(Pool, what_a_graph_names_goes_to_nobody_before_the_graph_is_gone) {
  const Tensor a = take(2 * kBlockBytes), small = take(1000);
  static_cast<void>(take(kBlockBytes));
  EXPECT_EQ(pool.pin(a.address + kBlockBytes + 1), a.address);
  EXPECT_EQ(pool.pin(a.address), a.address) << "named twice";
  EXPECT_EQ(pool.pin(small.address + 3), small.address);
  EXPECT_EQ(pool.pin(a.address - 1), 0u) << "nobody's";
  give(a);
  give(small);
  EXPECT_FALSE(pool.find(a.address));
  EXPECT_FALSE(pool.find(small.address));
  EXPECT_FALSE(pool.free(a.address, kA)) << "freed twice";
  EXPECT_FALSE(pool.free(small.address, kA));
  EXPECT_EQ(pool.bytes().used, kBlockBytes);
  EXPECT_TRUE(books.live.contains(a.extent)) << "its graph touches it like any";
  EXPECT_NE(take(2 * kBlockBytes).address, a.address);
  EXPECT_NE(take(1000).address, small.address);
  pool.unpin(a.address);
  EXPECT_NE(take(2 * kBlockBytes).address, a.address) << "still named once";
  pool.unpin(a.address);
  pool.unpin(small.address);
  EXPECT_EQ(books.retired_.count(a.extent), 1u);
  EXPECT_EQ(take(2 * kBlockBytes).address, a.address);
  EXPECT_EQ(take(1000).address, small.address);
}

TEST_F(Pool, a_slab_with_memory_of_a_graph_is_not_given_back) {
  const Tensor a = take(2 * kBlockBytes);
  static_cast<void>(pool.pin(a.address));
  give(a);
  EXPECT_EQ(pool.trim(0), CUDA_SUCCESS);
  EXPECT_EQ(driver.live().size(), 1u);
  pool.unpin(a.address);
  EXPECT_EQ(pool.trim(0), CUDA_SUCCESS);
  EXPECT_TRUE(driver.live().empty());
}

TEST_F(Pool, another_stream_waits_on_the_device_before_it_gets_memory_when_there_is_no_other) {
  std::vector<Tensor> all;
  while (budget.memory_info(0).free_bytes > 0) all.push_back(take(4 * kBlockBytes));
  ASSERT_TRUE(pool.note_work(kB));
  give(all.front(), kA);
  driver.steps.clear();
  EXPECT_EQ(take(4 * kBlockBytes, kB).address, all.front().address);
  ASSERT_EQ(driver.steps.size(), 2u);
  EXPECT_EQ(driver.steps[0].kind, Kind::Record);
  EXPECT_EQ(driver.steps[0].stream, kA);
  EXPECT_EQ(driver.steps[1], (FakeDriver::Step{Kind::Wait, kB, driver.steps[0].event}));
}

TEST_F(Pool, memory_freed_without_a_stream_is_ordered_behind_every_stream_for_every_stream) {
  ASSERT_TRUE(pool.note_work(kA));
  ASSERT_TRUE(pool.note_work(kB));
  const Tensor a = take(4 * kBlockBytes, kNoStream);
  give(a, kNoStream);
  driver.steps.clear();
  EXPECT_EQ(take(4 * kBlockBytes, kNoStream).address, a.address);
  EXPECT_EQ(count(Kind::Record), 2u);
  EXPECT_EQ(count(Kind::Wait), 2u) << "A for B's event and B for A's";
  EXPECT_EQ(count(Kind::Synchronize), 0u);
}

TEST_F(Pool, with_one_stream_nothing_waits_until_another_appears) {
  ASSERT_TRUE(pool.note_work(kA));
  const Tensor a = take(kBlockBytes, kNoStream);
  give(a, kNoStream);
  EXPECT_EQ(take(kBlockBytes, kNoStream).address, a.address);
  EXPECT_TRUE(driver.steps.empty());
  ASSERT_TRUE(pool.note_work(kB)) << "may be about to use the memory in which A still works";
  ASSERT_EQ(driver.steps.size(), 3u);
  EXPECT_EQ(driver.steps[0].kind, Kind::Record);
  EXPECT_EQ(driver.steps[2].kind, Kind::Wait);
  EXPECT_EQ(driver.steps[2].stream, kB);
}

TEST_F(Pool, a_destroyed_stream_is_waited_for_by_its_last_event_and_its_successor_is_another_stream) {
  std::vector<Tensor> all;
  while (budget.memory_info(0).free_bytes > 0) all.push_back(take(4 * kBlockBytes));
  ASSERT_TRUE(pool.note_work(kB));
  give(all.front(), kA);
  driver.is_idle = false;
  pool.forget(kA);
  driver.steps.clear();
  EXPECT_EQ(take(4 * kBlockBytes, kA).address, all.front().address) << "the same handle, created again";
  EXPECT_EQ(driver.steps.back().kind, Kind::Wait);
  EXPECT_EQ(driver.steps.back().stream, kA);
}

TEST_F(Pool, a_stream_that_is_captured_gets_no_memory_that_must_be_waited_for) {
  std::vector<Tensor> all;
  while (budget.memory_info(0).free_bytes > 0) all.push_back(take(4 * kBlockBytes));
  ASSERT_TRUE(pool.note_work(kB));
  give(all.front(), kA);
  driver.steps.clear();
  driver.capture_status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  books.captures = true;
  const Result<Tensor> refused = pool.allocate(4 * kBlockBytes, kB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(driver.steps.empty());
}

TEST_F(Pool, before_it_is_out_of_memory_idle_slabs_go_back_to_the_driver) {
  std::vector<Tensor> all;
  while (budget.memory_info(0).free_bytes > 0) all.push_back(take(4 * kBlockBytes));
  EXPECT_FALSE(pool.allocate(kBlockBytes, kA));
  for (const Tensor& each : all) give(each);
  EXPECT_EQ(pool.bytes().used, 0u);
  EXPECT_EQ(pool.bytes().reserved, kDeviceBytes);
  const Tensor large = take(kDeviceBytes - kBlockBytes);
  EXPECT_EQ(large.bytes, kDeviceBytes - kBlockBytes);
  EXPECT_EQ(driver.live().size(), 1u);
  EXPECT_TRUE(books.retired_.empty());
}

TEST_F(Pool, trim_keeps_what_it_is_told_to_and_what_is_used) {
  const Tensor a = take(4 * kBlockBytes), b = take(4 * kBlockBytes), c = take(4 * kBlockBytes);
  give(b);
  give(c);
  EXPECT_EQ(pool.trim(8 * kBlockBytes), CUDA_SUCCESS);
  EXPECT_EQ(pool.bytes().reserved, 8 * kBlockBytes);
  EXPECT_EQ(pool.trim(0), CUDA_SUCCESS);
  EXPECT_EQ(pool.bytes().reserved, 4 * kBlockBytes);
  give(a);
  EXPECT_EQ(pool.trim(0), CUDA_SUCCESS);
  EXPECT_TRUE(driver.live().empty());
  EXPECT_EQ(table.live(), 0u);
  EXPECT_EQ(budget.live_bytes(0).managed, 0u);
}

TEST_F(Pool, small_tensors_share_device_memory_and_have_no_extent) {
  const Tensor a = take(1), b = take(513), c = take(513);
  EXPECT_EQ(a.bytes, 512u);
  EXPECT_EQ(b.bytes, 1024u);
  EXPECT_EQ(b.address + 1024, c.address);
  EXPECT_EQ(a.extent, kNoExtent);
  EXPECT_EQ(driver.live().size(), 2u);
  EXPECT_EQ(budget.live_bytes(0).device_backed, 2 * kBlockBytes);
  EXPECT_EQ(pool.bytes().used, 512u + 2 * 1024);
  EXPECT_FALSE(pool.free(c.address + 512, kA)) << "inside a tensor";
  give(b);
  EXPECT_FALSE(pool.free(b.address, kA)) << "freed twice";
  EXPECT_EQ(take(1000).address, b.address);
  EXPECT_FALSE(pool.free(b.address + 1024 * 100, kA)) << "never given out";
}

TEST_F(Pool, small_memory_of_another_stream_is_not_shared) {
  const Tensor a = take(100, kA);
  give(a, kA);
  EXPECT_NE(take(100, kB).address, a.address);
  EXPECT_EQ(take(100, kA).address, a.address);
}

TEST_F(Pool, a_discarded_run_is_out_of_reach_until_the_host_saw_it_complete) {
  const Tensor a = take(4 * kBlockBytes);
  give(a);
  driver.is_idle = false;
  driver.steps.clear();
  pool.discard(std::vector{a.extent, a.extent});
  ASSERT_EQ(driver.steps.size(), 4u);
  EXPECT_EQ(driver.steps[0].kind, Kind::Record) << "of what was enqueued before the free";
  EXPECT_EQ(driver.steps[0].stream, kA);
  EXPECT_EQ(driver.steps[1].kind, Kind::Wait);
  EXPECT_EQ(driver.steps[1].stream, pool.own_stream());
  EXPECT_EQ(driver.steps[2], (FakeDriver::Step{Kind::Discard, pool.own_stream(), nullptr, std::vector{a.address}}));
  const Tensor b = take(4 * kBlockBytes);
  EXPECT_NE(b.address, a.address);
  EXPECT_FALSE(b.is_discarded);
  driver.is_idle = true;
  const Tensor c = take(4 * kBlockBytes);
  EXPECT_EQ(c.address, a.address);
  EXPECT_TRUE(c.is_discarded);
}

TEST_F(Pool, what_has_been_discarded_can_be_discarded_again) {
  const Tensor a = take(4 * kBlockBytes), b = take(4 * kBlockBytes);
  give(a);
  pool.discard(std::vector{a.extent});
  give(b);
  books.resident = {b.extent};
  ASSERT_EQ(take(4 * kBlockBytes).address, b.address);  // sees the discard complete
  pool.discard(std::vector{a.extent});  // joined with others it may have contents: only the driver knows
  EXPECT_EQ(count(Kind::Discard), 2u);
}

TEST_F(Pool, streams_that_have_waited_for_each_other_may_still_be_at_work_when_memory_is_discarded) {
  ASSERT_TRUE(pool.note_work(kA));
  ASSERT_TRUE(pool.note_work(kB));
  const Tensor a = take(4 * kBlockBytes, kNoStream), b = take(4 * kBlockBytes, kNoStream);
  give(a, kNoStream);
  give(b, kNoStream);
  EXPECT_EQ(take(4 * kBlockBytes, kNoStream).address, b.address);  // every stream waits for every other
  driver.steps.clear();
  pool.discard(std::vector{a.extent});
  EXPECT_EQ(count(Kind::Record), 3u) << "of both, and behind the discard";
  EXPECT_EQ(count(Kind::Wait), 2u) << "the pool's own stream was not among those that waited";
  EXPECT_EQ(count(Kind::Discard), 1u);
}

TEST_F(Pool, a_live_tensor_is_never_discarded) {
  const Tensor a = take(kBlockBytes);
  pool.discard(std::vector{a.extent, a.extent + 1, kNoExtent});
  EXPECT_EQ(count(Kind::Discard), 0u);
  give(a);
  const Tensor b = take(kBlockBytes);
  ASSERT_EQ(b.extent, a.extent);
  pool.discard(std::vector{a.extent});
  EXPECT_EQ(count(Kind::Discard), 0u);
}

TEST_F(Pool, a_context_that_is_destroyed_takes_everything_along) {
  const Tensor live = take(kBlockBytes), retired = take(kBlockBytes), small = take(100);
  give(retired);
  const auto departed = backing.destroy_context(kContext, [] { return CUDA_SUCCESS; });
  ASSERT_TRUE(departed);
  EXPECT_EQ(departed->size(), 2u);
  pool.note_destroyed();
  EXPECT_FALSE(pool.owns(live.address));
  EXPECT_FALSE(pool.owns(small.address));
  EXPECT_EQ(budget.live_bytes(0).managed, 0u);
  EXPECT_EQ(budget.live_bytes(0).device_backed, 0u);
}

// Random tensors of random streams, with each driver call failing at times: no two live tensors overlap, and in the end
// everything goes back.
TEST_F(Pool, random_sequences_with_failing_calls_never_overlap_and_balance) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::map<std::uint64_t, Tensor> live;
  const auto stream = [&]() -> std::optional<CUstream> {
    const auto which = random() % 3;
    return which == 0 ? std::optional<CUstream>() : std::optional(which == 1 ? kA : kB);
  };
  for (int step = 0; step < 20000; ++step) {
    driver.fail_call(random() % 10 == 0 ? static_cast<int>(random() % 4 + 1) : 0);
    driver.is_idle = random() % 2 == 0;
    if (random() % 2 == 0 || live.empty()) {
      const std::uint64_t bytes = random() % 3 == 0 ? random() % kThreshold + 1 : random() % (9 * kBlockBytes) + 1;
      const Result<Tensor> tensor = pool.allocate(bytes, stream());
      if (!tensor) continue;
      const auto next = live.lower_bound(tensor->address);
      ASSERT_TRUE(next == live.end() || tensor->address + tensor->bytes <= next->first);
      ASSERT_TRUE(next == live.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= tensor->address);
      live.emplace(tensor->address, *tensor);
      if (tensor->extent != kNoExtent && random() % 2 == 0) books.resident.insert(tensor->extent);
    } else {
      const auto victim = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      if (pool.free(victim->first, stream())) live.erase(victim);
    }
    if (random() % 20 == 0 && !books.retired_.empty()) {
      pool.discard(std::vector{books.retired_.begin()->first, books.retired_.rbegin()->first});
    }
    if (random() % 200 == 0) static_cast<void>(pool.trim(random() % kDeviceBytes));
  }
  driver.fail_call(0);
  driver.is_idle = true;
  for (const auto& [address, tensor] : live) EXPECT_TRUE(pool.free(address, kNoStream));
  EXPECT_TRUE(books.live.empty());
  EXPECT_EQ(pool.bytes().used, 0u);
  static_cast<void>(pool.allocate(kDeviceBytes + 1, kA));  // refused, but it makes what was discarded free again
  EXPECT_EQ(pool.trim(0), CUDA_SUCCESS);
  EXPECT_EQ(pool.trim(0), CUDA_SUCCESS);
  EXPECT_EQ(pool.bytes().reserved, 0u);
  EXPECT_TRUE(driver.live().empty());
  EXPECT_TRUE(books.retired_.empty());
  EXPECT_EQ(table.live(), 0u);
}

TEST_F(Pool, threads_share_it) {
  const auto work = [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto stream = reinterpret_cast<CUstream>(std::uintptr_t{0x100} + seed);
    std::vector<std::uint64_t> mine;
    for (int step = 0; step < 3000; ++step) {
      if (random() % 2 == 0 || mine.empty()) {
        if (const auto tensor = pool.allocate(random() % (3 * kBlockBytes) + 1, stream))
          mine.push_back(tensor->address);
      } else {
        EXPECT_TRUE(pool.free(mine.back(), stream));
        mine.pop_back();
      }
    }
    for (const std::uint64_t address : mine) EXPECT_TRUE(pool.free(address, stream));
  };
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.bytes().used, 0u);
  EXPECT_TRUE(books.live.empty());
}

}  // namespace
}  // namespace hmshim::uvm
