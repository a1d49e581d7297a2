#include <cstring>

#include "tests/unit/simgpu/model_gpu.hpp"

namespace hmshim::simgpu {
namespace {

// ---- capacity and eviction order ----

TEST(ModelResidency, a_first_touch_on_the_device_moves_no_bytes) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  EXPECT_TRUE(gpu.on_device(a));
  EXPECT_FALSE(gpu.state(a).on_host);
  EXPECT_EQ(gpu.h2d(Cause::kDemand), 0);
  EXPECT_EQ(gpu.stats().fault_groups, 1);
}

TEST(ModelResidency, what_the_cpu_wrote_first_is_copied_by_the_fault) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  std::memset(reinterpret_cast<void*>(a), 7, kBlockBytes);
  gpu.read(a);
  EXPECT_EQ(gpu.h2d(Cause::kDemand), kBlockBytes);
  EXPECT_FALSE(gpu.state(a).on_host);
  EXPECT_EQ(byte_at(a), 7);
}

TEST(ModelResidency, the_least_recently_migrated_block_is_evicted_whatever_was_accessed_since) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(5 * kBlockBytes);
  for (std::uint64_t i = 0; i < 4; ++i) gpu.write(Gpu::block(a, i));
  gpu.read(Gpu::block(a, 0));  // an access is no migration: block 0 stays the next victim
  gpu.write(Gpu::block(a, 4));
  EXPECT_FALSE(gpu.on_device(Gpu::block(a, 0)));
  EXPECT_TRUE(gpu.state(Gpu::block(a, 0)).on_host);
  EXPECT_TRUE(gpu.on_device(Gpu::block(a, 1)));
  EXPECT_EQ(gpu.d2h(Cause::kEviction), kBlockBytes);
  EXPECT_EQ(gpu.stats().evicted_blocks, 1);
}

TEST(ModelResidency, prefetching_a_resident_block_moves_it_behind_the_others_at_no_bytes) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(5 * kBlockBytes);
  for (std::uint64_t i = 0; i < 4; ++i) gpu.write(Gpu::block(a, i));
  gpu.prefetch(Gpu::block(a, 0));
  EXPECT_EQ(gpu.h2d(Cause::kUser), 0);
  gpu.write(Gpu::block(a, 4));
  EXPECT_TRUE(gpu.on_device(Gpu::block(a, 0)));
  EXPECT_FALSE(gpu.on_device(Gpu::block(a, 1)));
}

TEST(ModelResidency, a_block_smaller_than_two_mebibytes_never_moves_on_the_list) {
  Gpu gpu;
  const std::uint64_t small = gpu.managed(kBlockBytes / 2);
  const std::uint64_t a = gpu.managed(4 * kBlockBytes);
  gpu.write(small, kBlockBytes / 2);
  for (std::uint64_t i = 0; i < 3; ++i) gpu.write(Gpu::block(a, i));
  gpu.prefetch(small, kBlockBytes / 2);
  gpu.write(Gpu::block(a, 3));
  EXPECT_FALSE(gpu.on_device(small));
}

TEST(ModelResidency, advice_on_a_part_of_a_block_takes_it_off_the_list_too) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(5 * kBlockBytes);
  for (std::uint64_t i = 0; i < 4; ++i) gpu.write(Gpu::block(a, i));
  gpu.advise(a, Advice::kSetAccessedBy, 0, kRegionBytes);
  gpu.prefetch(a);
  gpu.write(Gpu::block(a, 4));
  EXPECT_FALSE(gpu.on_device(a));
}

TEST(ModelResidency, demote_leaves_the_chunk_attached_until_it_is_stolen_without_a_copy) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(5 * kBlockBytes);
  for (std::uint64_t i = 0; i < 4; ++i) gpu.write(Gpu::block(a, i));
  gpu.demote(Gpu::block(a, 2));
  EXPECT_EQ(gpu.d2h(Cause::kUser), kBlockBytes);
  EXPECT_FALSE(gpu.on_device(Gpu::block(a, 2)));
  EXPECT_TRUE(gpu.state(Gpu::block(a, 2)).has_chunk[0]);
  EXPECT_EQ(gpu.free_bytes(), 0);
  gpu.write(Gpu::block(a, 4));
  EXPECT_FALSE(gpu.state(Gpu::block(a, 2)).has_chunk[0]);
  EXPECT_TRUE(gpu.on_device(Gpu::block(a, 0)));
  EXPECT_EQ(gpu.stats().stolen_unused_chunks, 1);
  EXPECT_EQ(gpu.d2h(Cause::kEviction), 0);
}

TEST(ModelResidency, victims_are_unused_then_discarded_then_used) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(7 * kBlockBytes);
  for (std::uint64_t i = 0; i < 4; ++i) gpu.write(Gpu::block(a, i));
  gpu.discard(Gpu::block(a, 1));
  gpu.demote(Gpu::block(a, 3));
  gpu.write(Gpu::block(a, 4));
  EXPECT_FALSE(gpu.state(Gpu::block(a, 3)).has_chunk[0]);
  EXPECT_TRUE(gpu.state(Gpu::block(a, 1)).has_chunk[0]);
  gpu.write(Gpu::block(a, 5));
  EXPECT_FALSE(gpu.state(Gpu::block(a, 1)).has_chunk[0]);
  EXPECT_TRUE(gpu.state(Gpu::block(a, 0)).has_chunk[0]);
  EXPECT_EQ(gpu.d2h(Cause::kEviction), 0);
  gpu.write(Gpu::block(a, 6));
  EXPECT_FALSE(gpu.state(Gpu::block(a, 0)).has_chunk[0]);
  EXPECT_EQ(gpu.d2h(Cause::kEviction), kBlockBytes);
}

TEST(ModelResidency, a_device_allocation_evicts_managed_blocks_and_is_never_evicted) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(4 * kBlockBytes);
  gpu.write(a, 4 * kBlockBytes);
  gpu.device(3 * kBlockBytes);
  EXPECT_EQ(gpu.stats().evicted_blocks, 3);
  EXPECT_EQ(gpu.stats().resident_bytes, kBlockBytes);
  gpu.read(a, 4 * kBlockBytes);
  EXPECT_EQ(gpu.stats().resident_bytes, kBlockBytes);
}

TEST(ModelResidency, with_nothing_left_to_evict_a_prefetch_fails_and_a_fault_kills_the_device) {
  Gpu gpu;
  gpu.device(4 * kBlockBytes);
  const std::uint64_t a = gpu.managed(kBlockBytes);
  EXPECT_EQ(gpu.model.prefetch(gpu.stream, {a, kBlockBytes}, 0), Status::kOutOfMemory);
  gpu.launch({{a, kBlockBytes, AccessKind::kWrite}});
  EXPECT_EQ(gpu.model.synchronize_stream(gpu.stream), Status::kFaultOutOfMemory);
  EXPECT_EQ(gpu.model.device_status(0), Status::kFaultOutOfMemory);
  EXPECT_EQ(gpu.model.launch(gpu.stream, {}), Status::kFaultOutOfMemory);
}

TEST(ModelResidency, freeing_returns_chunks_and_host_pages) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(5 * kBlockBytes);
  gpu.write(a, 5 * kBlockBytes);
  EXPECT_EQ(gpu.model.stats().host_managed_bytes, kBlockBytes);
  EXPECT_EQ(gpu.model.free_memory(a), Status::kOk);
  EXPECT_EQ(gpu.free_bytes(), 4 * kBlockBytes);
  EXPECT_EQ(gpu.model.stats().host_managed_bytes, 0);
  EXPECT_EQ(gpu.stats().resident_bytes, 0);
  EXPECT_EQ(gpu.stats().peak_resident_bytes, 4 * kBlockBytes);
}

// ---- host memory ----

TEST(ModelResidency, host_pages_stay_after_their_content_went_back_to_the_device) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  EXPECT_EQ(gpu.model.stats().host_managed_bytes, 0);
  gpu.demote(a);
  gpu.prefetch(a);
  EXPECT_EQ(gpu.model.stats().host_managed_bytes, kBlockBytes);
}

TEST(ModelResidency, a_full_host_ends_in_out_of_memory) {
  Profile profile = round_profile();
  profile.host_ram_bytes = kBlockBytes;
  Gpu gpu(profile);
  const std::uint64_t a = gpu.managed(6 * kBlockBytes);
  gpu.write(a, 4 * kBlockBytes);
  gpu.demote(a);
  EXPECT_EQ(gpu.model.prefetch(gpu.stream, {Gpu::block(a, 1), kBlockBytes}, kHost), Status::kOutOfMemory);
  EXPECT_TRUE(gpu.on_device(Gpu::block(a, 1)));
  gpu.write(Gpu::block(a, 4));  // steals the demoted block's chunk
  std::uint64_t address = 0;
  EXPECT_EQ(gpu.model.allocate_device(0, kBlockBytes, &address), Status::kOutOfMemory);
  EXPECT_EQ(gpu.stats().resident_bytes, 4 * kBlockBytes);
}

TEST(ModelResidency, the_cpu_takes_a_block_back) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  EXPECT_EQ(gpu.model.host_access({a, 8, AccessKind::kRead}), Status::kOk);
  EXPECT_EQ(gpu.d2h(Cause::kCoherence), kRegionBytes);
  EXPECT_EQ(gpu.state(a).regions[0], ~1U);
  EXPECT_TRUE(gpu.state(a).on_host);
}

// ---- faults ----

TEST(ModelResidency, a_sparse_access_moves_one_big_page) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.demote(a);
  gpu.read(a + 5 * kRegionBytes, 4);
  EXPECT_EQ(gpu.state(a).regions[0], 1U << 5);
  EXPECT_EQ(gpu.h2d(Cause::kDemand), kRegionBytes);
}

TEST(ModelResidency, the_density_prefetcher_fills_a_subtree_of_which_more_than_half_is_there) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.demote(a);
  gpu.read(a, 3 * kRegionBytes);  // 3 of 4 big pages: the fourth comes along; 4 of 8 do not suffice
  EXPECT_EQ(gpu.state(a).regions[0], 0xFU);
  gpu.read(a + 4 * kRegionBytes, kRegionBytes);  // 5 of 8 → 8; then 8 of 16 do not suffice
  EXPECT_EQ(gpu.state(a).regions[0], 0xFFU);
}

TEST(ModelResidency, a_preferred_location_elsewhere_stops_the_density_prefetcher) {
  Gpu gpu(round_profile(), 2);
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.demote(a);
  gpu.advise(a, Advice::kSetPreferredLocation, 1);
  gpu.read(a, 3 * kRegionBytes);
  EXPECT_EQ(gpu.state(a).regions[0], 0x7U);
}

TEST(ModelResidency, a_first_touch_at_the_preferred_location_populates_the_block) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.advise(a, Advice::kSetPreferredLocation, 0);
  gpu.write(a, 4);
  EXPECT_EQ(gpu.state(a).regions[0], ~0U);
}

TEST(ModelResidency, copies_into_absent_memory_fault_page_by_page) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  std::vector<char> source(kBlockBytes, 3);
  const TimeNs begin = gpu.model.now();
  EXPECT_EQ(gpu.model.copy(gpu.stream, {a, reinterpret_cast<std::uint64_t>(source.data()), kBlockBytes, nullptr}),
            Status::kOk);
  gpu.sync();
  EXPECT_EQ(gpu.stats().copy_engine_faults, 512);
  EXPECT_GE(gpu.model.now() - begin, 512 * 30'000 + kBlockCopyNs);
  EXPECT_EQ(gpu.stats().fault_groups, 0);
  EXPECT_EQ(byte_at(a + kBlockBytes - 1), 3);
}

TEST(ModelResidency, copies_into_resident_memory_do_not_fault) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.prefetch(a);
  std::vector<char> source(kBlockBytes, 3);
  EXPECT_EQ(gpu.model.copy(gpu.stream, {a, reinterpret_cast<std::uint64_t>(source.data()), kBlockBytes, nullptr}),
            Status::kOk);
  gpu.sync();
  EXPECT_EQ(gpu.stats().copy_engine_faults, 0);
  EXPECT_EQ(gpu.h2d(Cause::kCopy), kBlockBytes);
}

TEST(ModelResidency, a_kernel_outside_of_every_allocation_is_a_sticky_error) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  bool has_run = false;
  gpu.launch({{a, 2 * kBlockBytes, AccessKind::kRead}}, 0, [&] { has_run = true; });
  EXPECT_EQ(gpu.model.synchronize_stream(gpu.stream), Status::kIllegalAddress);
  EXPECT_FALSE(has_run);
  EXPECT_EQ(gpu.model.device_status(0), Status::kIllegalAddress);
}

TEST(ModelResidency, a_block_used_by_two_devices_travels_through_the_host) {
  Gpu gpu(round_profile(), 2);
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  EXPECT_EQ(gpu.model.prefetch(gpu.model.legacy_stream(1), {a, kBlockBytes}, 1), Status::kOk);
  EXPECT_FALSE(gpu.on_device(a, 0));
  EXPECT_TRUE(gpu.on_device(a, 1));
  EXPECT_EQ(gpu.d2h(Cause::kUser), kBlockBytes);
  EXPECT_EQ(gpu.stats(1).h2d_bytes[static_cast<std::size_t>(Cause::kUser)], kBlockBytes);
}

// ---- discard ----

TEST(ModelDiscard, evicting_discarded_content_copies_nothing_and_poisons_it) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(5 * kBlockBytes);
  gpu.launch({{a, kBlockBytes, AccessKind::kWrite}}, 0, [=] { byte_at(a + 77) = 1; });
  for (std::uint64_t i = 1; i < 4; ++i) gpu.write(Gpu::block(a, i));
  gpu.discard(a);
  EXPECT_EQ(byte_at(a + 77), 1);
  gpu.write(Gpu::block(a, 4));
  EXPECT_EQ(byte_at(a + 77), kPoisonByte);
  EXPECT_EQ(gpu.d2h(Cause::kEviction), 0);
  EXPECT_EQ(gpu.stats().dropped_bytes, kBlockBytes);
  EXPECT_EQ(gpu.model.stats().host_managed_bytes, kBlockBytes);  // pages for dead data, as the driver does
}

TEST(ModelDiscard, reading_discarded_content_gives_poison_and_counts_a_hazard) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.launch({{a, kBlockBytes, AccessKind::kWrite}}, 0, [=] { byte_at(a) = 1; });
  gpu.discard(a);
  unsigned char seen = 0;
  gpu.launch({{a, 4, AccessKind::kRead}}, 0, [&] { seen = byte_at(a); });
  gpu.sync();
  EXPECT_EQ(seen, kPoisonByte);
  EXPECT_EQ(gpu.stats().reads_after_discard, 1);
}

TEST(ModelDiscard, a_write_without_a_prefetch_faults_and_counts_a_hazard) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  gpu.discard(a);
  const std::uint64_t groups = gpu.stats().fault_groups;
  gpu.write(a);
  EXPECT_EQ(gpu.stats().fault_groups, groups + 1);
  EXPECT_EQ(gpu.stats().writes_after_discard, 32);
  EXPECT_FALSE(gpu.state(a).is_discarded);
}

TEST(ModelDiscard, a_prefetch_after_discard_makes_the_block_usable_without_a_hazard) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  gpu.discard(a);
  EXPECT_TRUE(gpu.state(a).is_discarded);
  gpu.prefetch(a);
  EXPECT_FALSE(gpu.state(a).is_discarded);
  gpu.write(a);
  EXPECT_EQ(gpu.stats().writes_after_discard, 0);
  EXPECT_EQ(gpu.h2d(Cause::kUser), 0);
}

TEST(ModelDiscard, only_whole_big_pages_are_discarded_and_only_a_whole_block_becomes_an_early_victim) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(5 * kBlockBytes);
  for (std::uint64_t i = 0; i < 4; ++i) gpu.write(Gpu::block(a, i));
  gpu.discard(Gpu::block(a, 2) + 1, kBlockBytes - 1);  // the first big page is cut
  EXPECT_EQ(gpu.stats().discarded_bytes, kBlockBytes - kRegionBytes);
  gpu.write(Gpu::block(a, 4));
  EXPECT_FALSE(gpu.on_device(Gpu::block(a, 0)));
  EXPECT_TRUE(gpu.on_device(Gpu::block(a, 2)));
}

TEST(ModelDiscard, a_demoted_discarded_block_copies_nothing) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  gpu.discard(a);
  gpu.demote(a);
  EXPECT_EQ(gpu.d2h(Cause::kUser), 0);
}

// ---- advice ----

TEST(ModelAdvice, reading_a_read_mostly_block_duplicates_it_and_its_eviction_copies_nothing) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(5 * kBlockBytes);
  gpu.demote(a);
  gpu.advise(a, Advice::kSetReadMostly);
  gpu.read(a);
  EXPECT_TRUE(gpu.on_device(a));
  EXPECT_TRUE(gpu.state(a).on_host);
  for (std::uint64_t i = 1; i < 5; ++i) gpu.write(Gpu::block(a, i));
  EXPECT_FALSE(gpu.on_device(a));
  EXPECT_EQ(gpu.stats().evicted_blocks, 1);
  EXPECT_EQ(gpu.d2h(Cause::kEviction), 0);
}

TEST(ModelAdvice, a_write_collapses_duplicates_at_a_cost) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.demote(a);
  gpu.advise(a, Advice::kSetReadMostly);
  gpu.prefetch(a);
  EXPECT_TRUE(gpu.state(a).on_host);
  const TimeNs stall = gpu.stats().stall_ns;
  gpu.write(a);
  EXPECT_FALSE(gpu.state(a).on_host);
  EXPECT_TRUE(gpu.on_device(a));
  EXPECT_EQ(gpu.stats().stall_ns - stall, 10'000 + 2'000 + 1'500);
}

TEST(ModelAdvice, a_demote_under_read_mostly_keeps_the_device_copy) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  gpu.advise(a, Advice::kSetReadMostly);
  gpu.demote(a);
  EXPECT_TRUE(gpu.on_device(a));
  EXPECT_TRUE(gpu.state(a).on_host);
}

TEST(ModelAdvice, unsetting_read_mostly_keeps_the_host_copy) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  gpu.advise(a, Advice::kSetReadMostly);
  gpu.demote(a);
  gpu.advise(a, Advice::kUnsetReadMostly);
  EXPECT_FALSE(gpu.on_device(a));
  EXPECT_TRUE(gpu.state(a).on_host);
  EXPECT_TRUE(gpu.state(a).has_chunk[0]);
}

TEST(ModelAdvice, unsetting_read_mostly_keeps_the_device_copy_at_its_preferred_location) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  gpu.advise(a, Advice::kSetReadMostly);
  gpu.advise(a, Advice::kSetPreferredLocation, 0);
  gpu.demote(a);
  gpu.advise(a, Advice::kUnsetReadMostly);
  EXPECT_TRUE(gpu.on_device(a));
  EXPECT_FALSE(gpu.state(a).on_host);
}

TEST(ModelAdvice, unsetting_read_mostly_on_a_single_copy_moves_nothing) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  gpu.advise(a, Advice::kSetReadMostly);
  gpu.advise(a, Advice::kUnsetReadMostly);
  EXPECT_TRUE(gpu.on_device(a));
}

TEST(ModelAdvice, preferred_on_the_host_and_accessed_by_the_device_is_read_over_the_link) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.advise(a, Advice::kSetPreferredLocation, kHost);
  gpu.advise(a, Advice::kSetAccessedBy, 0);
  for (int i = 0; i < 2; ++i) gpu.read(a);
  EXPECT_FALSE(gpu.on_device(a));
  EXPECT_FALSE(gpu.state(a).has_chunk[0]);
  EXPECT_EQ(gpu.h2d(Cause::kRemote), 2 * kBlockBytes);
  EXPECT_EQ(gpu.stats().fault_groups, 0);
  EXPECT_EQ(gpu.stats().stall_ns, 2 * kBlockCopyNs);
  EXPECT_EQ(gpu.model.stats().host_managed_bytes, kBlockBytes);
}

TEST(ModelAdvice, accessed_by_alone_leaves_the_block_where_it_is) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.demote(a);
  gpu.advise(a, Advice::kSetAccessedBy, 0);
  gpu.write(a);
  EXPECT_FALSE(gpu.on_device(a));
  EXPECT_EQ(gpu.d2h(Cause::kRemote), kBlockBytes);
}

TEST(ModelAdvice, a_prefetch_moves_a_block_whatever_its_preferred_location) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.advise(a, Advice::kSetPreferredLocation, kHost);
  gpu.demote(a);
  gpu.prefetch(a);
  EXPECT_TRUE(gpu.on_device(a));
  EXPECT_EQ(gpu.state(a).last_prefetch, 0);
}

TEST(ModelAdvice, ranges_outside_of_one_managed_allocation_are_refused) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  const std::uint64_t d = gpu.device(kBlockBytes);
  EXPECT_EQ(gpu.model.advise({a, kBlockBytes + 1}, Advice::kSetReadMostly, 0), Status::kInvalidValue);
  EXPECT_EQ(gpu.model.advise({d, kBlockBytes}, Advice::kSetReadMostly, 0), Status::kInvalidValue);
  EXPECT_EQ(gpu.model.advise({a, kBlockBytes}, Advice::kSetPreferredLocation, 7), Status::kInvalidValue);
  EXPECT_EQ(gpu.model.prefetch(gpu.stream, {a, 0}, 0), Status::kInvalidValue);
  EXPECT_EQ(gpu.model.prefetch(gpu.stream, {a, kBlockBytes}, 7), Status::kInvalidValue);
  EXPECT_EQ(gpu.model.discard(gpu.stream, {d, kBlockBytes}), Status::kInvalidValue);
}

// ---- prefetch ----

TEST(ModelPrefetch, a_range_of_several_blocks_is_walked_twice_and_one_block_once) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(3 * kBlockBytes);
  TimeNs begin = gpu.model.now();
  EXPECT_EQ(gpu.model.prefetch(gpu.stream, {a, kBlockBytes}, 0), Status::kOk);
  EXPECT_EQ(gpu.model.now() - begin, 700 + 300);
  begin = gpu.model.now();
  EXPECT_EQ(gpu.model.prefetch(gpu.stream, {a, 3 * kBlockBytes}, 0), Status::kOk);
  EXPECT_EQ(gpu.model.now() - begin, 700 + 2 * 3 * 300);
}

TEST(ModelPrefetch, prefetching_more_than_fits_evicts_its_own_blocks_and_copies_them_again) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(6 * kBlockBytes);
  gpu.demote(a, 6 * kBlockBytes);
  gpu.prefetch(a, 6 * kBlockBytes);
  // First pass: 6 in, 2 out. Second pass, in the same order through an LRU of 4: every block misses.
  EXPECT_EQ(gpu.h2d(Cause::kUser), 12 * kBlockBytes);
  EXPECT_EQ(gpu.d2h(Cause::kEviction), 8 * kBlockBytes);
}

TEST(ModelPrefetch, the_call_returns_before_the_copy_and_the_stream_waits_for_it) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.demote(a);
  const TimeNs begin = gpu.model.now();
  EXPECT_EQ(gpu.model.prefetch(gpu.stream, {a, kBlockBytes}, 0), Status::kOk);
  EXPECT_EQ(gpu.model.now() - begin, 1'000);
  gpu.sync();
  EXPECT_EQ(gpu.model.now() - begin, 1'000 + kBlockCopyNs);
}

TEST(ModelPrefetch, a_demote_blocks_its_caller_until_the_pages_are_mapped) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  TimeNs begin = gpu.model.now();
  EXPECT_EQ(gpu.model.prefetch(gpu.stream, {a, kBlockBytes}, kHost), Status::kOk);
  EXPECT_EQ(gpu.model.now() - begin, 700 + 9'000 + kBlockCopyNs);
  gpu.prefetch(a);
  begin = gpu.model.now();
  EXPECT_EQ(gpu.model.prefetch(gpu.stream, {a, kBlockBytes}, kHost), Status::kOk);
  EXPECT_EQ(gpu.model.now() - begin, 700 + 4'000 + kBlockCopyNs);
}

TEST(ModelPrefetch, on_a_busy_stream_it_waits_for_the_stream_on_the_deferred_worker) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.launch({}, 500'000);
  const TimeNs begin = gpu.model.now();
  EXPECT_EQ(gpu.model.prefetch(gpu.stream, {a, kBlockBytes}, 0), Status::kOk);
  EXPECT_EQ(gpu.model.now() - begin, 700);
  EXPECT_FALSE(gpu.on_device(a));
  gpu.sync();
  EXPECT_TRUE(gpu.on_device(a));
}

TEST(ModelPrefetch, deferred_calls_of_all_streams_share_one_worker) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(2 * kBlockBytes);
  StreamId other = 0;
  EXPECT_EQ(gpu.model.create_stream(0, StreamKind::kNonBlocking, &other), Status::kOk);
  gpu.write(a);
  gpu.launch({}, 10'000);
  EXPECT_EQ(gpu.model.prefetch(gpu.stream, {a, kBlockBytes}, kHost), Status::kOk);  // blocks the worker for its copy
  EXPECT_EQ(gpu.model.launch(other, {{}, 10'000, nullptr}), Status::kOk);
  EXPECT_EQ(gpu.model.prefetch(other, {Gpu::block(a, 1), kBlockBytes}, 0), Status::kOk);
  EXPECT_EQ(gpu.model.synchronize_stream(other), Status::kOk);
  EXPECT_FALSE(gpu.on_device(a));
  EXPECT_EQ(gpu.model.query_stream(gpu.stream), Status::kOk);
}

TEST(ModelPrefetch, demoting_what_a_kernel_uses_brings_it_back_at_twice_the_bytes) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  StreamId other = 0;
  EXPECT_EQ(gpu.model.create_stream(0, StreamKind::kNonBlocking, &other), Status::kOk);
  gpu.launch({{a, kBlockBytes, AccessKind::kRead}}, 1'000'000);
  gpu.model.sleep_until(gpu.model.now() + 1'000);
  EXPECT_EQ(gpu.model.prefetch(other, {a, kBlockBytes}, kHost), Status::kOk);
  EXPECT_FALSE(gpu.on_device(a));
  gpu.sync();
  EXPECT_TRUE(gpu.on_device(a));
  EXPECT_EQ(gpu.h2d(Cause::kDemand), kBlockBytes);
}

}  // namespace
}  // namespace hmshim::simgpu
