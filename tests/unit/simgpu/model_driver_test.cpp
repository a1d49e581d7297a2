// What the driver does besides moving blocks: its lock, its answer to thrashing, its access counters.
#include <algorithm>
#include <functional>
#include <thread>

#include "tests/unit/simgpu/model_gpu.hpp"

namespace hmshim::simgpu {
namespace {

constexpr TimeNs kLapseNs = 500'000;

Profile watching_profile() {
  Profile profile = round_profile();
  profile.thrashing_lapse_ns = kLapseNs;
  return profile;
}

void cpu_writes(Gpu& gpu, std::uint64_t address) {
  EXPECT_EQ(gpu.model.host_access({address, kBlockBytes, AccessKind::kWrite}), Status::kOk);
}

// ---- thrashing

TEST(ModelThrashing, a_block_that_cpu_and_gpu_fight_over_makes_one_of_them_wait_and_is_pinned_at_last) {
  Gpu gpu(watching_profile());
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  TimeNs longest_ns = 0;
  int rounds = 0;
  for (; rounds < 60 && gpu.stats().remote_pins == 0; ++rounds) {
    const TimeNs begin = gpu.model.now();
    cpu_writes(gpu, a);
    gpu.write(a);
    longest_ns = std::max(longest_ns, gpu.model.now() - begin);
  }
  EXPECT_GT(gpu.stats().throttled_faults, 0);
  EXPECT_GT(longest_ns, kLapseNs / 2);  // a nap, where a round takes 220 us
  ASSERT_EQ(gpu.stats().remote_pins, 1) << rounds << " rounds";
  EXPECT_FALSE(gpu.on_device(a));

  const std::uint64_t groups = gpu.stats().fault_groups;
  gpu.write(a);
  EXPECT_EQ(gpu.stats().fault_groups, groups);
  EXPECT_FALSE(gpu.on_device(a));
  gpu.model.sleep_until(gpu.model.now() + 300 * kLapseNs);  // the pin ends
  gpu.write(a);
  EXPECT_TRUE(gpu.on_device(a));
}

TEST(ModelThrashing, what_the_gpu_alone_misses_again_and_again_is_no_thrashing) {
  Gpu gpu(watching_profile());
  const std::uint64_t a = gpu.managed(5 * kBlockBytes);
  for (std::uint64_t i = 0; i < 200; ++i) gpu.write(Gpu::block(a, i % 5));
  EXPECT_GT(gpu.stats().evicted_blocks, 100);
  EXPECT_EQ(gpu.stats().throttled_faults, 0);
}

TEST(ModelThrashing, migrations_that_the_guest_orders_are_none_and_end_it) {
  Gpu gpu(watching_profile());
  const std::uint64_t a = gpu.managed(kBlockBytes);
  for (int i = 0; i < 20; ++i) {
    for (int turn = 0; turn < 2; ++turn) {
      cpu_writes(gpu, a);
      gpu.write(a);
    }
    gpu.demote(a);
    gpu.write(a);
  }
  EXPECT_EQ(gpu.stats().throttled_faults, 0);
}

TEST(ModelThrashing, turns_that_are_far_apart_are_none) {
  Gpu gpu(watching_profile());
  const std::uint64_t a = gpu.managed(kBlockBytes);
  for (int i = 0; i < 40; ++i) {
    cpu_writes(gpu, a);
    gpu.model.sleep_until(gpu.model.now() + 2 * kLapseNs);
    gpu.write(a);
    gpu.model.sleep_until(gpu.model.now() + 2 * kLapseNs);
  }
  EXPECT_EQ(gpu.stats().throttled_faults, 0);
}

TEST(ModelThrashing, two_gpus_fight_too) {
  Gpu gpu(watching_profile(), 2);
  const std::uint64_t a = gpu.managed(kBlockBytes);
  const StreamId other = gpu.model.legacy_stream(1);
  for (int i = 0; i < 60 && gpu.stats(0).remote_pins + gpu.stats(1).remote_pins == 0; ++i) {
    gpu.write(a);
    EXPECT_EQ(gpu.model.launch(other, {{{a, kBlockBytes, AccessKind::kWrite}}, 0, nullptr}), Status::kOk);
    EXPECT_EQ(gpu.model.synchronize_device(1), Status::kOk);
  }
  EXPECT_GT(gpu.stats(0).throttled_faults + gpu.stats(1).throttled_faults, 0);
}

// ---- access counters

TEST(ModelAccessCounters, without_them_what_is_mapped_remotely_stays_there) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.demote(a);
  gpu.advise(a, Advice::kSetAccessedBy, 0);
  for (int i = 0; i < 5; ++i) gpu.read(a);
  EXPECT_FALSE(gpu.on_device(a));
  EXPECT_EQ(gpu.h2d(Cause::kAccessCounters), 0);
}

TEST(ModelAccessCounters, with_them_an_evicted_block_is_reached_over_the_link_until_it_is_worth_a_migration) {
  Profile profile = round_profile();
  profile.access_counter_threshold = 256;
  Gpu gpu(profile);
  const std::uint64_t a = gpu.managed(5 * kBlockBytes);
  for (std::uint64_t i = 0; i < 5; ++i) gpu.write(Gpu::block(a, i));
  ASSERT_FALSE(gpu.on_device(a));
  const std::uint64_t groups = gpu.stats().fault_groups;
  gpu.read(a, 128 * 200);
  EXPECT_FALSE(gpu.on_device(a));
  EXPECT_EQ(gpu.h2d(Cause::kRemote), 128 * 200);
  gpu.read(a, 128 * 56);
  EXPECT_TRUE(gpu.on_device(a));
  EXPECT_EQ(gpu.h2d(Cause::kAccessCounters), kBlockBytes);
  EXPECT_EQ(gpu.stats().fault_groups, groups);
}

TEST(ModelAccessCounters, they_respect_a_preferred_location) {
  Profile profile = round_profile();
  profile.access_counter_threshold = 256;
  Gpu gpu(profile);
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.advise(a, Advice::kSetPreferredLocation, kHost);
  gpu.demote(a);
  for (int i = 0; i < 3; ++i) gpu.read(a);
  EXPECT_FALSE(gpu.on_device(a));
}

// ---- the lock of the address space

/// A long demote of 8 blocks by an agent, 9 us each; what `guest` does meanwhile, 5 us after its start, ends at:
TimeNs end_beside_a_demote(Gpu& gpu, std::uint64_t a, const std::function<void()>& guest) {
  EXPECT_EQ(gpu.model.synchronize_device(0), Status::kOk);
  const TimeNs begin = gpu.model.now();
  const AgentId agent = gpu.model.register_agent("demoter");
  std::thread thread([&] {
    EXPECT_EQ(gpu.model.attach_agent(agent), Status::kOk);
    StreamId stream = 0;
    EXPECT_EQ(gpu.model.create_stream(0, StreamKind::kNonBlocking, &stream), Status::kOk);
    EXPECT_EQ(gpu.model.prefetch(stream, {a, 8 * kBlockBytes}, kHost), Status::kOk);
    gpu.model.detach_agent();
  });
  gpu.model.sleep_until(begin + 5'000);
  guest();
  const TimeNs end = gpu.model.now();
  gpu.model.begin_external_wait();
  thread.join();
  gpu.model.end_external_wait();
  return end - begin;
}

Profile roomy_profile() {
  Profile profile = round_profile();
  profile.capacity_bytes = 32 * kBlockBytes;
  profile.demote_run_bytes = kBlockBytes;
  return profile;
}

TEST(ModelVaSpaceLock, an_allocation_waits_for_a_migration_under_way) {
  Gpu gpu(roomy_profile());
  const std::uint64_t a = gpu.managed(8 * kBlockBytes);
  gpu.write(a, 8 * kBlockBytes);
  EXPECT_GT(end_beside_a_demote(gpu, a, [&] { gpu.managed(kBlockBytes); }), 8 * (9'000 + kBlockCopyNs));
}

TEST(ModelVaSpaceLock, a_launch_does_not_wait_for_a_migration_under_way) {
  Gpu gpu(roomy_profile());
  const std::uint64_t a = gpu.managed(8 * kBlockBytes);
  const std::uint64_t b = gpu.managed(kBlockBytes);
  gpu.write(a, 8 * kBlockBytes);
  EXPECT_LT(end_beside_a_demote(gpu, a, [&] { gpu.write(b); }), 5'000 + 10 + 5 + 12'000 + 100);
}

TEST(ModelVaSpaceLock, behind_a_writer_that_waits_faults_wait_too) {
  Gpu gpu(roomy_profile());
  const std::uint64_t a = gpu.managed(8 * kBlockBytes);
  const std::uint64_t b = gpu.managed(kBlockBytes);
  gpu.write(a, 8 * kBlockBytes);
  const TimeNs stall = gpu.stats().stall_ns;
  end_beside_a_demote(gpu, a, [&] {
    gpu.launch({}, 20'000);  // the fault comes while the allocation waits
    gpu.launch({{b, kBlockBytes, AccessKind::kWrite}});
    gpu.managed(kBlockBytes);
    gpu.sync();
  });
  EXPECT_GT(gpu.stats().stall_ns - stall, 6 * (9'000 + kBlockCopyNs));
}

}  // namespace
}  // namespace hmshim::simgpu
