#include <atomic>
#include <thread>

#include "tests/unit/simgpu/model_gpu.hpp"

namespace hmshim::simgpu {
namespace {

constexpr TimeNs kMs = 1'000'000;

StreamId new_stream(Gpu& gpu, StreamKind kind = StreamKind::kNonBlocking, int device = 0) {
  StreamId stream = 0;
  EXPECT_EQ(gpu.model.create_stream(device, kind, &stream), Status::kOk);
  return stream;
}

EventId new_event(Gpu& gpu) {
  EventId event = 0;
  EXPECT_EQ(gpu.model.create_event(0, &event), Status::kOk);
  return event;
}

void launch_on(Gpu& gpu, StreamId stream, TimeNs duration_ns, Body body = nullptr) {
  EXPECT_EQ(gpu.model.launch(stream, {{}, duration_ns, std::move(body)}), Status::kOk);
}

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

// ---- time ----

TEST(ModelTime, the_cpu_runs_ahead_and_a_synchronisation_waits_for_the_kernels) {
  Gpu gpu;
  const TimeNs begin = gpu.model.now();
  gpu.launch({}, kMs);
  gpu.launch({}, kMs);
  EXPECT_EQ(gpu.model.now() - begin, 2 * 10);
  gpu.sync();
  EXPECT_EQ(gpu.model.now() - begin, 10 + 2 * (5 + kMs));
}

TEST(ModelTime, elapsed_time_between_events_is_virtual) {
  Gpu gpu;
  const EventId start = new_event(gpu);
  const EventId end = new_event(gpu);
  EXPECT_EQ(gpu.model.record_event(start, gpu.stream), Status::kOk);
  gpu.launch({}, 3 * kMs);
  EXPECT_EQ(gpu.model.record_event(end, gpu.stream), Status::kOk);
  TimeNs elapsed = 0;
  EXPECT_EQ(gpu.model.event_elapsed(start, end, &elapsed), Status::kNotReady);
  EXPECT_EQ(gpu.model.synchronize_event(end), Status::kOk);
  EXPECT_EQ(gpu.model.event_elapsed(start, end, &elapsed), Status::kOk);
  EXPECT_EQ(elapsed, 10 + 5 + 3 * kMs);  // the launch call, the way to the device, the kernel
  EXPECT_EQ(gpu.model.event_elapsed(start, new_event(gpu), &elapsed), Status::kInvalidHandle);
}

TEST(ModelTime, a_fault_of_one_block_stalls_its_kernel_by_service_and_copy) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.demote(a);
  const TimeNs begin = gpu.model.now();
  gpu.launch({{a, kBlockBytes, AccessKind::kRead}}, kMs);
  gpu.sync();
  EXPECT_EQ(gpu.stats().stall_ns, 10'000 + 2'000 + kBlockCopyNs);
  EXPECT_EQ(gpu.model.now() - begin, 10 + 5 + 12'000 + kBlockCopyNs + kMs);
  EXPECT_EQ(gpu.stats().kernel_busy_ns, kMs);
}

TEST(ModelTime, a_fault_that_evicts_pays_the_way_out_before_the_way_in) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(5 * kBlockBytes);
  gpu.demote(Gpu::block(a, 4));
  for (std::uint64_t i = 0; i < 4; ++i) gpu.write(Gpu::block(a, i));
  gpu.demote(a);
  gpu.prefetch(a);  // at the end of the list, with host pages
  constexpr TimeNs kHostPagesNs = 9'000 - 4'000;
  for (const auto& [block, pages_ns] :
       {std::pair(4, kHostPagesNs), {1, kHostPagesNs}, {2, kHostPagesNs}, {3, TimeNs{0}}}) {
    const TimeNs stall = gpu.stats().stall_ns;
    gpu.read(Gpu::block(a, static_cast<std::uint64_t>(block)));
    EXPECT_EQ(gpu.stats().stall_ns - stall, 10'000 + 2'000 + 800 + pages_ns + kBlockCopyNs + kBlockCopyNs) << block;
  }
}

TEST(ModelTime, a_group_serves_up_to_256_faults) {
  Profile profile = round_profile();
  profile.capacity_bytes = 32 * kBlockBytes;
  Gpu gpu(profile);
  const std::uint64_t a = gpu.managed(9 * kBlockBytes);
  gpu.write(a, 9 * kBlockBytes);  // 9 blocks of 32 big pages: 256 faults, then 32
  EXPECT_EQ(gpu.stats().fault_groups, 2);
  EXPECT_EQ(gpu.stats().faulted_blocks, 9);
}

TEST(ModelTime, an_access_to_a_block_on_its_way_waits_for_it_in_a_fault_and_a_gate_avoids_that) {
  TimeNs stall[2];
  for (const bool is_gated : {false, true}) {
    Gpu gpu;
    const std::uint64_t a = gpu.managed(kBlockBytes);
    gpu.demote(a);
    const StreamId fetcher = new_stream(gpu);
    const EventId fetched = new_event(gpu);
    EXPECT_EQ(gpu.model.prefetch(fetcher, {a, kBlockBytes}, 0), Status::kOk);
    EXPECT_EQ(gpu.model.record_event(fetched, fetcher), Status::kOk);
    if (is_gated) {
      EXPECT_EQ(gpu.model.wait_event(gpu.stream, fetched), Status::kOk);
    }
    gpu.read(a);
    stall[is_gated ? 1 : 0] = gpu.stats().stall_ns;
    EXPECT_EQ(gpu.h2d(Cause::kDemand), 0);
  }
  EXPECT_GT(stall[0], kBlockCopyNs / 2);
  EXPECT_EQ(stall[1], 0);
}

TEST(ModelTime, copies_in_opposite_directions_overlap_where_the_link_allows) {
  for (const bool is_full : {false, true}) {
    Profile profile = round_profile();
    profile.planned_duplex = is_full ? Duplex::kFull : Duplex::kSerialised;
    Gpu gpu(profile);
    const StreamId other = new_stream(gpu);
    const std::uint64_t d = gpu.device(2 * kBlockBytes);
    std::vector<char> host(2 * kBlockBytes);
    const TimeNs begin = gpu.model.now();
    EXPECT_EQ(gpu.model.copy(gpu.stream, {d, address_of(host.data()), kBlockBytes, nullptr}), Status::kOk);
    EXPECT_EQ(gpu.model.copy(other, {address_of(host.data()) + kBlockBytes, d + kBlockBytes, kBlockBytes, nullptr}),
              Status::kOk);
    EXPECT_EQ(gpu.model.synchronize_device(0), Status::kOk);
    EXPECT_EQ(gpu.model.now() - begin, is_full ? kBlockCopyNs + 20 : 2 * kBlockCopyNs + 10);
  }
}

TEST(ModelTime, both_directions_together_get_no_more_than_the_links_total) {
  Profile profile = round_profile();
  profile.link_total_gbps = 1.5 * profile.link_h2d_gbps;
  Gpu gpu(profile);
  const StreamId other = new_stream(gpu);
  const std::uint64_t d = gpu.device(4 * kBlockBytes);
  std::vector<char> host(4 * kBlockBytes);
  const TimeNs begin = gpu.model.now();
  for (std::uint64_t i = 0; i < 2; ++i) {
    const std::uint64_t at = i * kBlockBytes;
    const std::uint64_t back = at + 2 * kBlockBytes;
    EXPECT_EQ(gpu.model.copy(gpu.stream, {d + at, address_of(host.data()) + at, kBlockBytes, nullptr}), Status::kOk);
    EXPECT_EQ(gpu.model.copy(other, {address_of(host.data()) + back, d + back, kBlockBytes, nullptr}), Status::kOk);
  }
  EXPECT_EQ(gpu.model.synchronize_device(0), Status::kOk);
  const double ideal_ns = 4.0 * kBlockCopyNs / 1.5;
  EXPECT_NEAR(static_cast<double>(gpu.model.now() - begin), ideal_ns, 0.05 * ideal_ns);
}

TEST(ModelTime, a_kernel_and_a_copy_overlap) {
  Gpu gpu;
  const StreamId other = new_stream(gpu);
  const std::uint64_t d = gpu.device(kBlockBytes);
  std::vector<char> host(kBlockBytes);
  const TimeNs begin = gpu.model.now();
  gpu.launch({}, kMs);
  EXPECT_EQ(gpu.model.copy(other, {d, address_of(host.data()), kBlockBytes, nullptr}), Status::kOk);
  EXPECT_EQ(gpu.model.synchronize_device(0), Status::kOk);
  EXPECT_EQ(gpu.model.now() - begin, 10 + 5 + kMs);
}

TEST(ModelTime, a_full_queue_stops_the_cpu) {
  Profile profile = round_profile();
  profile.queue_depth = 2;
  Gpu gpu(profile);
  for (int i = 0; i < 3; ++i) gpu.launch({}, kMs);
  EXPECT_GE(gpu.model.now(), kMs);
}

TEST(ModelTime, sleeping_lets_the_device_work) {
  Gpu gpu;
  gpu.launch({}, kMs);
  EXPECT_EQ(gpu.model.query_stream(gpu.stream), Status::kNotReady);
  gpu.model.sleep_until(gpu.model.now() + 2 * kMs);
  EXPECT_EQ(gpu.model.query_stream(gpu.stream), Status::kOk);
}

TEST(ModelTime, polling_costs_time_so_it_ends) {
  Gpu gpu;
  const EventId event = new_event(gpu);
  gpu.launch({}, 10'000);
  EXPECT_EQ(gpu.model.record_event(event, gpu.stream), Status::kOk);
  int polls = 0;
  while (gpu.model.query_event(event) == Status::kNotReady) ++polls;
  EXPECT_EQ(polls, 10'005 - 10 - 1);  // the record's call took 10, each query takes 1, the last one sees it done
}

// ---- order ----

TEST(ModelStreams, bodies_run_in_virtual_time_order) {
  Gpu gpu;
  const StreamId other = new_stream(gpu);
  std::string order;
  launch_on(gpu, gpu.stream, kMs, [&] { order += 'a'; });
  EXPECT_EQ(gpu.model.host_function(gpu.stream, [&] { order += 'b'; }), Status::kOk);
  EXPECT_EQ(gpu.model.host_function(other, [&] { order += 'c'; }), Status::kOk);
  EXPECT_EQ(gpu.model.synchronize_device(0), Status::kOk);
  EXPECT_EQ(order, "cab");
}

TEST(ModelStreams, the_legacy_stream_waits_for_blocking_streams_and_they_for_it) {
  Gpu gpu;
  const StreamId blocking = new_stream(gpu, StreamKind::kBlocking);
  const StreamId legacy = gpu.model.legacy_stream(0);
  std::string order;
  launch_on(gpu, blocking, kMs, [&] { order += 'a'; });
  EXPECT_EQ(gpu.model.host_function(legacy, [&] { order += 'b'; }), Status::kOk);
  launch_on(gpu, legacy, kMs, [&] { order += 'c'; });
  EXPECT_EQ(gpu.model.host_function(blocking, [&] { order += 'd'; }), Status::kOk);
  EXPECT_EQ(gpu.model.host_function(gpu.stream, [&] { order += 'x'; }), Status::kOk);
  EXPECT_EQ(gpu.model.synchronize_device(0), Status::kOk);
  EXPECT_EQ(order, "xabcd");
}

TEST(ModelStreams, synchronising_the_legacy_stream_waits_for_the_blocking_ones_only) {
  Gpu gpu;
  const StreamId blocking = new_stream(gpu, StreamKind::kBlocking);
  launch_on(gpu, blocking, kMs);
  launch_on(gpu, gpu.stream, 9 * kMs);
  EXPECT_EQ(gpu.model.query_stream(gpu.model.legacy_stream(0)), Status::kNotReady);
  EXPECT_EQ(gpu.model.synchronize_stream(gpu.model.legacy_stream(0)), Status::kOk);
  EXPECT_EQ(gpu.model.query_stream(blocking), Status::kOk);
  EXPECT_EQ(gpu.model.query_stream(gpu.stream), Status::kNotReady);
}

TEST(ModelStreams, each_thread_has_its_own_blocking_stream) {
  Gpu gpu;
  const StreamId mine = gpu.model.per_thread_stream(0);
  EXPECT_EQ(gpu.model.per_thread_stream(0), mine);
  StreamId theirs = mine;
  std::thread([&] { theirs = gpu.model.per_thread_stream(0); }).join();
  EXPECT_NE(theirs, mine);
  EXPECT_EQ(gpu.model.destroy_stream(mine), Status::kInvalidHandle);
}

TEST(ModelStreams, an_event_orders_streams_of_different_devices) {
  Gpu gpu(round_profile(), 2);
  const StreamId remote = new_stream(gpu, StreamKind::kNonBlocking, 1);
  const EventId event = new_event(gpu);
  std::string order;
  launch_on(gpu, gpu.stream, kMs, [&] { order += 'a'; });
  EXPECT_EQ(gpu.model.record_event(event, gpu.stream), Status::kOk);
  EXPECT_EQ(gpu.model.wait_event(remote, event), Status::kOk);
  launch_on(gpu, remote, 0, [&] { order += 'b'; });
  EXPECT_EQ(gpu.model.synchronize_device(1), Status::kOk);
  EXPECT_EQ(order, "ab");
}

TEST(ModelStreams, a_wait_uses_the_record_of_its_time_and_none_before_the_first) {
  Gpu gpu;
  const StreamId other = new_stream(gpu);
  const EventId event = new_event(gpu);
  EXPECT_EQ(gpu.model.query_event(event), Status::kOk);
  EXPECT_EQ(gpu.model.wait_event(other, event), Status::kOk);
  launch_on(gpu, gpu.stream, kMs);
  EXPECT_EQ(gpu.model.record_event(event, gpu.stream), Status::kOk);
  EXPECT_EQ(gpu.model.query_event(event), Status::kNotReady);
  EXPECT_EQ(gpu.model.synchronize_stream(other), Status::kOk);
  EXPECT_LT(gpu.model.now(), kMs);
}

TEST(ModelStreams, a_destroyed_stream_still_finishes_its_work) {
  Gpu gpu;
  const StreamId other = new_stream(gpu);
  bool has_run = false;
  launch_on(gpu, other, kMs, [&] { has_run = true; });
  EXPECT_EQ(gpu.model.destroy_stream(other), Status::kOk);
  EXPECT_EQ(gpu.model.launch(other, {}), Status::kInvalidHandle);
  EXPECT_EQ(gpu.model.synchronize_device(0), Status::kOk);
  EXPECT_TRUE(has_run);
}

TEST(ModelStreams, unknown_handles_are_refused) {
  Gpu gpu;
  EXPECT_EQ(gpu.model.synchronize_stream(999), Status::kInvalidHandle);
  EXPECT_EQ(gpu.model.record_event(999, gpu.stream), Status::kInvalidHandle);
  EXPECT_EQ(gpu.model.wait_event(gpu.stream, 999), Status::kInvalidHandle);
  EXPECT_EQ(gpu.model.destroy_event(999), Status::kInvalidHandle);
  EXPECT_EQ(gpu.model.destroy_stream(gpu.model.legacy_stream(0)), Status::kInvalidHandle);
}

TEST(ModelStreams, a_body_may_not_call_the_model_but_may_ask_what_costs_nothing) {
  Gpu gpu;
  Status status = Status::kOk;
  std::uint64_t live = 0;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.launch({}, 0, [&] {
    status = gpu.model.synchronize_device(0);
    live = gpu.model.find_allocation(a)->bytes;
  });
  gpu.sync();
  EXPECT_EQ(status, Status::kNotPermitted);
  EXPECT_EQ(live, kBlockBytes);
}

TEST(ModelStreams, copies_and_fills_move_real_bytes_at_their_time) {
  Gpu gpu;
  const std::uint64_t d = gpu.device(kBlockBytes);
  std::vector<char> in(1000, 5);
  std::vector<char> out(1000, 0);
  EXPECT_EQ(gpu.model.fill(gpu.stream, {d, 2000, [=] { std::fill_n(&byte_at(d), 2000, 9); }}), Status::kOk);
  EXPECT_EQ(gpu.model.copy(gpu.stream, {d, address_of(in.data()), 1000, nullptr}), Status::kOk);
  EXPECT_EQ(gpu.model.copy(gpu.stream, {address_of(out.data()), d + 500, 1000, nullptr}), Status::kOk);
  EXPECT_EQ(out[0], 0);
  gpu.sync();
  EXPECT_EQ(out[0], 5);
  EXPECT_EQ(out[500], 9);
  EXPECT_EQ(gpu.d2h(Cause::kCopy), 1000);
}

// ---- values in memory ----

TEST(ModelValues, a_wait_is_met_by_a_write_from_another_stream) {
  Gpu gpu;
  const StreamId other = new_stream(gpu);
  alignas(8) std::uint64_t word = 0;
  std::string order;
  EXPECT_EQ(gpu.model.wait_value(gpu.stream, address_of(&word), 3, 8, WaitCondition::kEqual), Status::kOk);
  EXPECT_EQ(gpu.model.host_function(gpu.stream, [&] { order += 'b'; }), Status::kOk);
  launch_on(gpu, other, kMs, [&] { order += 'a'; });
  EXPECT_EQ(gpu.model.write_value(other, address_of(&word), 3, 8), Status::kOk);
  gpu.sync();
  EXPECT_EQ(order, "ab");
  EXPECT_GE(gpu.model.now(), kMs);
}

TEST(ModelValues, conditions_follow_the_drivers_definitions) {
  const struct {
    std::uint32_t found;
    std::uint32_t value;
    WaitCondition condition;
    bool holds;
  } cases[] = {
      {5, 5, WaitCondition::kGreaterOrEqual, true},
      {4, 5, WaitCondition::kGreaterOrEqual, false},
      {1, 0xFFFFFFFF, WaitCondition::kGreaterOrEqual, true},  // cyclic
      {5, 4, WaitCondition::kEqual, false},
      {6, 2, WaitCondition::kAnd, true},
      {4, 2, WaitCondition::kAnd, false},
      {0xFFFFFFFF, 0, WaitCondition::kNor, false},
      {0xFFFFFFFE, 0, WaitCondition::kNor, true},
  };
  Gpu gpu;
  for (const auto& one : cases) {
    const StreamId stream = new_stream(gpu);
    std::uint32_t word = one.found;
    EXPECT_EQ(gpu.model.wait_value(stream, address_of(&word), one.value, 4, one.condition), Status::kOk);
    gpu.model.sleep_until(gpu.model.now() + 100);
    EXPECT_EQ(gpu.model.query_stream(stream), one.holds ? Status::kOk : Status::kNotReady) << one.found;
    word = one.condition == WaitCondition::kNor ? 0 : one.value;
    EXPECT_EQ(gpu.model.synchronize_stream(stream), Status::kOk);
  }
}

TEST(ModelValues, a_waiting_thread_sees_a_plain_store_of_the_cpu) {
  Gpu gpu;
  std::atomic<std::uint32_t> word{0};
  EXPECT_EQ(gpu.model.wait_value(gpu.stream, address_of(&word), 1, 4, WaitCondition::kEqual), Status::kOk);
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    word.store(1);
  });
  gpu.sync();
  writer.join();
}

TEST(ModelValues, a_waiting_thread_is_met_by_a_later_call_of_another) {
  Gpu gpu;
  const StreamId other = new_stream(gpu);
  alignas(8) std::uint64_t word = 0;
  EXPECT_EQ(gpu.model.wait_value(gpu.stream, address_of(&word), 1, 8, WaitCondition::kEqual), Status::kOk);
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(gpu.model.write_value(other, address_of(&word), 1, 8), Status::kOk);
  });
  gpu.sync();
  writer.join();
}

TEST(ModelValues, a_misaligned_or_odd_sized_value_is_refused) {
  Gpu gpu;
  alignas(8) std::uint64_t word = 0;
  EXPECT_EQ(gpu.model.write_value(gpu.stream, address_of(&word) + 4, 1, 8), Status::kInvalidValue);
  EXPECT_EQ(gpu.model.write_value(gpu.stream, address_of(&word), 1, 2), Status::kInvalidValue);
}

TEST(ModelValues, a_deadlock_is_described_while_the_wait_goes_on) {
  std::atomic<bool> is_reported{false};
  std::string report;
  alignas(8) std::uint64_t word = 0;
  Model model({.profile = round_profile(),
               .device_count = 1,
               .capacity_bytes = {},
               .host_ram_bytes = {},
               .on_stall =
                   [&](const std::string& text) {
                     report = text;
                     __atomic_store_n(&word, 1, __ATOMIC_RELEASE);  // what the guest never did
                     is_reported = true;
                   },
               .stall_report_s = 1});
  EXPECT_EQ(model.wait_value(model.legacy_stream(0), address_of(&word), 1, 8, WaitCondition::kEqual), Status::kOk);
  EXPECT_EQ(model.synchronize_device(0), Status::kOk);
  EXPECT_TRUE(is_reported);
  EXPECT_NE(report.find("waits for a value in memory"), std::string::npos) << report;
  EXPECT_NE(report.find("agent guest"), std::string::npos) << report;
}

}  // namespace
}  // namespace hmshim::simgpu
