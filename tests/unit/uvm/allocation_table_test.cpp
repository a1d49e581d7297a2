#include "uvm/allocation_table.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

namespace hmshim::uvm {
namespace {

using policy::kBlockBytes;
using policy::kNoExtent;

constexpr std::uint64_t kBase = 0x7f1200000000;

Allocation managed(std::uint64_t base, std::uint64_t bytes, std::uint16_t device = 0, std::uint64_t context = 0) {
  return {.base = base,
          .bytes = bytes,
          .driver_base = base,
          .backed_bytes = policy::round_up_to_block(bytes),
          .context = context,
          .device = device};
}

Allocation device_backed(std::uint64_t base, std::uint64_t bytes) {
  return {.base = base, .bytes = bytes, .driver_base = base, .backed_bytes = bytes, .backing = Backing::Device};
}

TEST(AllocationTable, finds_first_interior_and_last_byte_and_misses_one_past) {
  AllocationTable table;
  Allocation allocation = managed(kBase, 3 * kBlockBytes + 1000, 5);
  ASSERT_TRUE(table.insert(allocation));
  for (const std::uint64_t offset :
       {std::uint64_t{0}, kBlockBytes - 1, kBlockBytes, 3 * kBlockBytes, 3 * kBlockBytes + 999}) {
    EXPECT_EQ(table.find(kBase + offset).extent, allocation.extent) << offset;
    EXPECT_EQ(table.find(kBase + offset).device, 5u) << offset;
    EXPECT_EQ(table.lookup(kBase + offset)->base, kBase) << offset;
  }
  for (const std::uint64_t address : {kBase - 1, kBase + 3 * kBlockBytes + 1000, kBase + 4 * kBlockBytes}) {
    EXPECT_EQ(table.find(address).extent, kNoExtent) << address;
    EXPECT_FALSE(table.lookup(address)) << address;
  }
}

TEST(AllocationTable, one_past_a_whole_number_of_blocks_misses_or_is_the_neighbour) {
  AllocationTable table;
  Allocation first = managed(kBase, 2 * kBlockBytes);
  ASSERT_TRUE(table.insert(first));
  EXPECT_EQ(table.find(kBase + 2 * kBlockBytes).extent, kNoExtent);
  Allocation second = managed(kBase + 2 * kBlockBytes, 1);
  ASSERT_TRUE(table.insert(second));
  EXPECT_EQ(table.find(kBase + 2 * kBlockBytes - 1).extent, first.extent);
  EXPECT_EQ(table.find(kBase + 2 * kBlockBytes).extent, second.extent);
}

TEST(AllocationTable, any_64_bit_word_may_be_asked) {
  AllocationTable table;
  Allocation low = managed(kBlockBytes, kBlockBytes);
  Allocation high = managed((std::uint64_t{1} << 57) - kBlockBytes, kBlockBytes, AllocationTable::kMaxDevices - 1);
  ASSERT_TRUE(table.insert(low));
  ASSERT_TRUE(table.insert(high));
  EXPECT_EQ(table.find(high.base + kBlockBytes - 1).extent, high.extent);
  EXPECT_EQ(table.find(high.base).device, AllocationTable::kMaxDevices - 1);
  for (const std::uint64_t word :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 57, ~std::uint64_t{0}, 0xffff800000000000}) {
    EXPECT_EQ(table.find(word).extent, kNoExtent) << word;
  }
  // An address that equals a live one but for the bits above 57.
  EXPECT_EQ(table.find(low.base | std::uint64_t{1} << 60).extent, kNoExtent);
}

TEST(AllocationTable, an_allocation_may_span_leaves) {
  AllocationTable table;
  const std::uint64_t leaf_bytes = 16384 * kBlockBytes;
  const std::uint64_t base = (kBase / leaf_bytes + 1) * leaf_bytes - kBlockBytes;
  Allocation allocation = managed(base, 2 * kBlockBytes);
  ASSERT_TRUE(table.insert(allocation));
  EXPECT_EQ(table.find(base).extent, allocation.extent);
  EXPECT_EQ(table.find(base + kBlockBytes).extent, allocation.extent);
}

TEST(AllocationTable, extents_are_dense_and_the_lowest_free_one_is_reused) {
  AllocationTable table;
  std::vector<Allocation> allocations;
  for (std::uint64_t i = 0; i < 5; ++i) {
    allocations.push_back(managed(kBase + i * kBlockBytes, kBlockBytes));
    ASSERT_TRUE(table.insert(allocations.back()));
    EXPECT_EQ(allocations.back().extent, i);
  }
  for (const std::size_t i : {3, 1}) {
    ASSERT_TRUE(table.remove(allocations[i].base));
    table.release_extent(allocations[i].extent);
  }
  for (const policy::ExtentId expected : {1u, 3u, 5u}) {
    Allocation next = managed(kBase + (10 + expected) * kBlockBytes, kBlockBytes);
    ASSERT_TRUE(table.insert(next));
    EXPECT_EQ(next.extent, expected);
  }
}

TEST(AllocationTable, a_removed_extent_is_not_given_out_before_it_is_released) {
  AllocationTable table;
  Allocation first = managed(kBase, kBlockBytes);
  ASSERT_TRUE(table.insert(first));
  ASSERT_TRUE(table.remove(kBase));
  EXPECT_FALSE(table.lookup_extent(first.extent));
  Allocation same_address = managed(kBase, kBlockBytes);
  ASSERT_TRUE(table.insert(same_address));
  EXPECT_NE(same_address.extent, first.extent);
  table.release_extent(first.extent);
  table.release_extent(first.extent);  // a second time changes nothing
  Allocation second = managed(kBase + kBlockBytes, kBlockBytes);
  Allocation third = managed(kBase + 2 * kBlockBytes, kBlockBytes);
  ASSERT_TRUE(table.insert(second));
  ASSERT_TRUE(table.insert(third));
  EXPECT_EQ(second.extent, first.extent);
  EXPECT_NE(third.extent, first.extent);
}

TEST(AllocationTable, a_removed_entry_comes_back_with_the_extent_it_had) {
  AllocationTable table;
  Allocation allocation = managed(kBase, 5000);
  ASSERT_TRUE(table.insert(allocation));
  std::optional<Allocation> removed = table.remove(kBase);
  ASSERT_TRUE(removed);
  EXPECT_EQ(table.find(kBase).extent, kNoExtent);
  ASSERT_TRUE(table.insert(*removed));
  EXPECT_EQ(table.find(kBase + 4999).extent, allocation.extent);
  EXPECT_EQ(table.lookup_extent(allocation.extent)->bytes, 5000u);
  Allocation thief = managed(kBase + kBlockBytes, kBlockBytes);
  thief.extent = allocation.extent;
  EXPECT_FALSE(table.insert(thief)) << "the extent belongs to a live allocation";
}

TEST(AllocationTable, overlaps_and_impossible_ranges_are_refused_and_change_nothing) {
  AllocationTable table;
  Allocation held = managed(kBase + kBlockBytes, kBlockBytes + 1);  // owns two blocks
  ASSERT_TRUE(table.insert(held));
  const std::uint64_t top = std::uint64_t{1} << 57;
  for (Allocation refused :
       {managed(kBase, 2 * kBlockBytes), managed(kBase + kBlockBytes, 1), managed(kBase + 2 * kBlockBytes, 1),
        managed(kBase + 4096, 1), managed(kBase, 0), managed(0, kBlockBytes), managed(top, kBlockBytes),
        managed(top - kBlockBytes, kBlockBytes + 1), managed(kBlockBytes, ~std::uint64_t{0}),
        managed(kBase, kBlockBytes, AllocationTable::kMaxDevices), device_backed(held.base + kBlockBytes + 512, 16)}) {
    EXPECT_FALSE(table.insert(refused)) << std::hex << refused.base << " " << refused.bytes;
  }
  EXPECT_EQ(table.live(), 1u);
  EXPECT_EQ(table.find(kBase).extent, kNoExtent);
  Allocation next = managed(kBase, kBlockBytes);
  ASSERT_TRUE(table.insert(next));
  EXPECT_EQ(next.extent, 1u) << "a refusal must not use an extent up";
}

TEST(AllocationTable, device_backed_allocations_are_in_the_records_only) {
  AllocationTable table;
  Allocation small = device_backed(kBase + 512, 256);
  ASSERT_TRUE(table.insert(small));
  EXPECT_EQ(small.extent, kNoExtent);
  EXPECT_EQ(table.find(kBase + 600).extent, kNoExtent);
  EXPECT_EQ(table.lookup(kBase + 600)->backing, Backing::Device);
  EXPECT_FALSE(table.lookup(kBase + 768));
  EXPECT_TRUE(table.remove(kBase + 512));
  EXPECT_EQ(table.live(), 0u);
}

TEST(AllocationTable, only_the_base_removes) {
  AllocationTable table;
  Allocation allocation = managed(kBase, 2 * kBlockBytes);
  ASSERT_TRUE(table.insert(allocation));
  EXPECT_FALSE(table.remove(kBase + 1));
  EXPECT_FALSE(table.remove(kBase + kBlockBytes));
  EXPECT_TRUE(table.remove(kBase));
  EXPECT_FALSE(table.remove(kBase));
  EXPECT_EQ(table.find(kBase + kBlockBytes).extent, kNoExtent);
}

TEST(AllocationTable, a_context_takes_only_its_own_with_it) {
  AllocationTable table;
  Allocation a = managed(kBase, kBlockBytes, 0, 0xa);
  Allocation b = managed(kBase + kBlockBytes, kBlockBytes, 0, 0xb);
  Allocation a2 = device_backed(kBase + 8 * kBlockBytes, 64);
  a2.context = 0xa;
  for (Allocation* each : {&a, &b, &a2}) ASSERT_TRUE(table.insert(*each));
  EXPECT_EQ(table.remove_context(0xa).size(), 2u);
  EXPECT_EQ(table.live(), 1u);
  EXPECT_EQ(table.find(kBase).extent, kNoExtent);
  EXPECT_EQ(table.find(kBase + kBlockBytes).extent, b.extent);
  EXPECT_TRUE(table.remove_context(0xc).empty());
}

TEST(AllocationTable, the_window_holds_every_managed_allocation_and_starts_empty) {
  AllocationTable table;
  EXPECT_EQ(table.window().span, 0u);
  Allocation high = managed(kBase + 10 * kBlockBytes, kBlockBytes);
  Allocation low = managed(kBase, kBlockBytes);
  ASSERT_TRUE(table.insert(high));
  ASSERT_TRUE(table.insert(low));
  EXPECT_EQ(table.window().low, kBase);
  EXPECT_EQ(table.window().span, 11 * kBlockBytes);
}

// Eight threads, each with an address range of its own, insert and remove at random; four more only read. A reader must
// see an address as not managed or as an extent of the thread that owns it (known by its device), and a thread always
// sees its own state exactly.
TEST(AllocationTable, eight_writers_and_four_readers_see_only_states_that_existed) {
  constexpr int kWriters = 8;
  constexpr int kRounds = 3000;
  constexpr std::uint64_t kSlots = 32;
  constexpr std::uint64_t kSlotBytes = 4 * kBlockBytes;
  AllocationTable table;
  std::atomic<int> writing{kWriters};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&, writer] {
      std::minstd_rand random(static_cast<unsigned>(writer) + 1);
      const std::uint64_t range = kBase + static_cast<std::uint64_t>(writer) * kSlots * kSlotBytes;
      std::vector<Allocation> slots(kSlots);
      for (int round = 0; round < kRounds; ++round) {
        const std::uint64_t slot = random() % kSlots;
        const std::uint64_t base = range + slot * kSlotBytes;
        Allocation& mine = slots[slot];
        if (mine.bytes == 0) {
          mine = managed(base, random() % kSlotBytes + 1, static_cast<std::uint16_t>(writer));
          if (!table.insert(mine)) ++wrong;
          if (table.find(base + mine.bytes - 1).extent != mine.extent) ++wrong;
          if (table.find(base + mine.bytes).extent == mine.extent) ++wrong;
        } else {
          const std::optional<Allocation> removed = table.remove(base);
          if (!removed || removed->extent != mine.extent || removed->bytes != mine.bytes) ++wrong;
          if (table.find(base).extent != kNoExtent) ++wrong;
          table.release_extent(mine.extent);
          mine = {};
        }
      }
      for (const Allocation& mine : slots) {
        if (mine.bytes != 0 && !table.remove(mine.base)) ++wrong;
        table.release_extent(mine.bytes != 0 ? mine.extent : kNoExtent);
      }
      --writing;
    });
  }
  for (int reader = 0; reader < 4; ++reader) {
    threads.emplace_back([&, reader] {
      std::minstd_rand random(static_cast<unsigned>(reader) + 100);
      while (writing > 0) {
        const std::uint64_t owner = random() % kWriters;
        const std::uint64_t address = kBase + (owner * kSlots + random() % kSlots) * kSlotBytes + random() % kSlotBytes;
        const Hit hit = table.find(address);
        if (hit.extent == kNoExtent) continue;
        if (hit.device != owner || hit.extent >= kWriters * (kSlots + 1)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(table.live(), 0u);
  Allocation after = managed(kBase, kBlockBytes);
  ASSERT_TRUE(table.insert(after));
  EXPECT_EQ(after.extent, 0u) << "every extent came back";
}

}  // namespace
}  // namespace hmshim::uvm
