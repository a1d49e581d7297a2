// What each thing costs that the model of tests/simgpu charges for. scripts/gpu-calibrate makes a device profile of
// the answers; the comments name the keys.
#include <algorithm>
#include <cstring>

#include "tests/gpu/probe.hpp"

namespace probe {
namespace {

constexpr int kRounds = 5;
constexpr double kHold_ms = 5;  // of a kernel that holds a stream while work for it is enqueued

using Sizes = std::vector<std::size_t>;

/// The median of some rounds.
template <typename Measure>
double typical(Measure measure) {
  std::vector<double> values;
  for (int round = 0; round < kRounds; ++round) values.push_back(measure());
  return median(std::move(values));
}

/// Microseconds of device time for each of `count` operations that were all enqueued before the first began.
template <typename Enqueue>
double each_queued_us(const Stream& stream, std::size_t count, Enqueue enqueue) {
  const Event begin;
  const Event end;
  launch_spin(kHold_ms, stream);
  CHECK(cudaEventRecord(begin, stream));
  for (std::size_t i = 0; i < count; ++i) enqueue();
  CHECK(cudaEventRecord(end, stream));
  stream.wait();
  return 1e3 * ms_between(begin, end) / static_cast<double>(count);
}

/// As much device memory as a question may take: the probe is a small guest on the card.
std::size_t plain_bytes() { return std::min(256 * kMiB, managed_limit_bytes() / 4 / kBlockBytes * kBlockBytes); }

// link_h2d_gbps, link_d2h_gbps, link_total_gbps, link_curve, hbm_gbps, host_copy_gbps
void link() {
  const std::size_t bytes = plain_bytes();
  const Stream up;
  const Stream down;
  char* pinned[2] = {};
  char* plain[2] = {};
  for (int i = 0; i < 2; ++i) {
    CHECK(cudaMallocHost(&pinned[i], bytes));
    CHECK(cudaMalloc(&plain[i], bytes));
    std::memset(pinned[i], 1, bytes);
  }
  const auto copy_up = [&](std::size_t size) {
    CHECK(cudaMemcpyAsync(plain[0], pinned[0], size, cudaMemcpyHostToDevice, up));
  };
  const auto copy_down = [&](std::size_t size) {
    CHECK(cudaMemcpyAsync(pinned[1], plain[1], size, cudaMemcpyDeviceToHost, down));
  };
  copy_up(bytes);
  copy_down(bytes);
  up.wait();
  down.wait();
  Points up_us;
  Points down_us;
  for (std::size_t size = 4096; size <= bytes; size *= size < 2 * kMiB ? 2 : 4) {
    const std::size_t count = std::clamp<std::size_t>(64 * kMiB / size, 2, 200);
    const double x = static_cast<double>(size);
    up_us.emplace_back(x, typical([&] { return each_queued_us(up, count, [&] { copy_up(size); }); }));
    down_us.emplace_back(x, typical([&] { return each_queued_us(down, count, [&] { copy_down(size); }); }));
  }
  tell("h2d_us_by_bytes", up_us);
  tell("d2h_us_by_bytes", down_us);

  const Event begin;
  const Event up_end;
  const Event down_end;
  const auto both_us = [&] {
    launch_spin(kHold_ms, up);
    CHECK(cudaEventRecord(begin, up));
    CHECK(cudaStreamWaitEvent(down, begin, 0));
    copy_up(bytes);
    CHECK(cudaEventRecord(up_end, up));
    copy_down(bytes);
    CHECK(cudaEventRecord(down_end, down));
    up.wait();
    down.wait();
    return 1e3 * std::max(ms_between(begin, up_end), ms_between(begin, down_end));
  };
  tell("both_bytes", bytes);
  tell("both_h2d_us", typical([&] { return each_queued_us(up, 1, [&] { copy_up(bytes); }); }));
  tell("both_d2h_us", typical([&] { return each_queued_us(down, 1, [&] { copy_down(bytes); }); }));
  tell("both_us", typical(both_us));

  const auto within = [&] { CHECK(cudaMemcpyAsync(plain[1], plain[0], bytes, cudaMemcpyDeviceToDevice, up)); };
  tell("d2d_us", typical([&] { return each_queued_us(up, 4, within); }));
  tell("h2h_us", typical([&] {
         const auto start = Clock::now();
         CHECK(cudaMemcpyAsync(pinned[1], pinned[0], bytes, cudaMemcpyHostToHost, up));
         up.wait();
         return us_since(start);
       }));
  for (int i = 0; i < 2; ++i) {
    CHECK(cudaFreeHost(pinned[i]));
    CHECK(cudaFree(plain[i]));
  }
}

// launch_host_ns, launch_device_ns, call_host_ns, alloc_host_ns, queue_depth. Also asked with the library preloaded.
void calls() {
  const Stream stream;
  float* data = nullptr;
  CHECK(cudaMalloc(&data, kBlockBytes));
  for (int i = 0; i < 100; ++i) launch_four_parameters(data, data, data, stream);
  stream.wait();

  std::vector<double> launch_us;
  for (int round = 0; round < kRounds; ++round) {
    launch_spin(kHold_ms, stream);
    for (int i = 0; i < 400; ++i) {
      const auto start = Clock::now();
      launch_four_parameters(data, data, data, stream);
      launch_us.push_back(us_since(start));
    }
    stream.wait();
  }
  tell("launch_us", median(launch_us));
  tell("launch_p99_us", percentile(launch_us, 99));
  tell("launch_on_device_us",
       typical([&] { return each_queued_us(stream, 400, [&] { launch_four_parameters(data, data, data, stream); }); }));
  std::vector<double> query_us;
  for (int i = 0; i < 400; ++i) {
    const auto start = Clock::now();
    CHECK(cudaStreamQuery(stream));
    query_us.push_back(us_since(start));
  }
  tell("query_us", median(query_us));

  // Of 4 MiB: the library manages that size, so that with it these are its own pool's figures.
  std::vector<double> alloc_us;
  std::vector<double> free_us;
  for (int i = 0; i < 20; ++i) {
    void* each = nullptr;
    auto start = Clock::now();
    CHECK(cudaMalloc(&each, 2 * kBlockBytes));
    alloc_us.push_back(us_since(start));
    start = Clock::now();
    CHECK(cudaFree(each));
    free_us.push_back(us_since(start));
  }
  tell("alloc_us", median(alloc_us));
  tell("free_us", median(free_us));

  // Not until the kernel ends: then the stream was never full.
  constexpr std::size_t kMost = 4000;
  constexpr double kLong_ms = 100;
  launch_spin(kLong_ms, stream);
  const auto begin = Clock::now();
  std::size_t queued = 0;
  for (bool is_blocked = false; !is_blocked && queued < kMost && ms_since(begin) < kLong_ms - 5;) {
    const auto start = Clock::now();
    launch_empty(stream);
    ++queued;
    is_blocked = us_since(start) > 2000;
  }
  const bool was_blocked = ms_since(begin) > kLong_ms / 2;
  stream.wait();
  if (was_blocked) tell("launches_until_blocked", queued);
  CHECK(cudaFree(data));
}

/// Microseconds of a call, and until its work is done.
struct Timing {
  double call_us = 0;
  double done_us = 0;
};

template <typename Call>
Timing timed(const Stream& stream, Call call) {
  const auto start = Clock::now();
  call();
  const double call_us = us_since(start);
  stream.wait();
  return {call_us, us_since(start)};
}

/// Medians of what `measure(blocks)` says, by blocks.
template <typename Measure>
void tell_timings(const std::string& name, const Sizes& sizes, Measure measure) {
  Points call_us;
  Points done_us;
  for (const std::size_t blocks : sizes) {
    std::vector<double> call;
    std::vector<double> done;
    for (int round = 0; round < kRounds; ++round) {
      const Timing timing = measure(blocks);
      call.push_back(timing.call_us);
      done.push_back(timing.done_us);
    }
    call_us.emplace_back(static_cast<double>(blocks), median(call));
    done_us.emplace_back(static_cast<double>(blocks), median(done));
  }
  tell(name + "_call_us_by_blocks", call_us);
  tell(name + "_done_us_by_blocks", done_us);
}

Sizes up_to(std::size_t blocks) {
  Sizes sizes;
  for (std::size_t size = 1; size <= blocks; size *= 2) sizes.push_back(size);
  return sizes;
}

// prefetch_call_ns, prefetch_block_ns, demote_block_first_ns, demote_block_later_ns. And: does prefetching what is
// resident already (a touch) cost bytes?
void migration() {
  const Stream stream;
  const Managed region(region_bytes(256 * kMiB, 2));
  const std::size_t most = region.blocks();
  region.warm_up(stream);
  const auto move = [&](std::size_t blocks, cudaMemLocation to) {
    return timed(stream, [&] { CHECK(cudaMemPrefetchAsync(region.data(), blocks * kBlockBytes, to, 0, stream)); });
  };
  tell_timings("prefetch", up_to(most), [&](std::size_t blocks) {
    region.prefetch(kHost, stream);
    return move(blocks, kDevice);
  });
  tell_timings("touch", up_to(most), [&](std::size_t blocks) {
    region.prefetch(kDevice, stream);
    return move(blocks, kDevice);
  });
  tell_timings("demote_later", up_to(most), [&](std::size_t blocks) {
    region.prefetch(kDevice, stream);
    return move(blocks, kHost);
  });
  tell_timings("demote_what_is_there", up_to(most), [&](std::size_t blocks) {
    region.prefetch(kHost, stream);
    return move(blocks, kHost);
  });
  tell_timings("demote_first", up_to(std::min<std::size_t>(most, 32)), [&](std::size_t blocks) {
    const Managed fresh(blocks * kBlockBytes);
    timed_write(fresh, stream);  // populated on the device, as a framework's tensor is
    return timed(stream, [&] { CHECK(cudaMemPrefetchAsync(fresh.data(), fresh.bytes(), kHost, 0, stream)); });
  });
}

// discard_block_ns, advise_call_ns, advise_block_ns
void advice() {
  const Stream stream;
  const Managed region(region_bytes(64 * kMiB, 1));
  const std::size_t most = region.blocks();
  region.warm_up(stream);
  void* address = region.data();
  cudaMemLocation to = kDevice;
  std::size_t first = 0;
  tell_timings("discard", up_to(most), [&](std::size_t blocks) {
    region.prefetch(kDevice, stream);
    std::size_t bytes = blocks * kBlockBytes;
    return timed(stream, [&] { CHECK(cudaMemDiscardBatchAsync(&address, &bytes, 1, 0, stream)); });
  });
  tell_timings("discard_and_prefetch", up_to(most), [&](std::size_t blocks) {
    region.prefetch(kDevice, stream);
    std::size_t bytes = blocks * kBlockBytes;
    return timed(stream,
                 [&] { CHECK(cudaMemDiscardAndPrefetchBatchAsync(&address, &bytes, 1, &to, &first, 1, 0, stream)); });
  });
  const std::pair<const char*, std::pair<cudaMemoryAdvise, cudaMemoryAdvise>> kinds[] = {
      {"preferred_location", {cudaMemAdviseSetPreferredLocation, cudaMemAdviseUnsetPreferredLocation}},
      {"accessed_by", {cudaMemAdviseSetAccessedBy, cudaMemAdviseUnsetAccessedBy}},
      {"read_mostly", {cudaMemAdviseSetReadMostly, cudaMemAdviseUnsetReadMostly}},
  };
  for (const auto& [name, advice] : kinds) {
    const auto advise = [&](std::size_t blocks, cudaMemoryAdvise which) {
      return timed(stream, [&] { CHECK(cudaMemAdvise(region.data(), blocks * kBlockBytes, which, kDevice)); });
    };
    tell_timings("set_" + std::string(name), up_to(most), [&, &advice = advice](std::size_t blocks) {
      advise(most, advice.second);
      region.prefetch(kDevice, stream);
      return advise(blocks, advice.first);
    });
    tell_timings("unset_" + std::string(name), up_to(most), [&, &advice = advice](std::size_t blocks) {
      advise(most, advice.first);
      region.prefetch(kDevice, stream);
      return advise(blocks, advice.second);
    });
    advise(most, advice.second);
  }
}

// fault_group_ns, fault_block_ns, collapse_block_ns, copy_engine_fault_page_ns, cpu_fault_block_ns
void faults() {
  const Stream stream;
  const Managed region(region_bytes(128 * kMiB, 1));
  const std::size_t most = std::min<std::size_t>(region.blocks(), 64);
  region.warm_up(stream);
  const auto touch_us = [&](std::size_t blocks, bool writes) {
    return 1e3 * timed_launch(stream, [&] { launch_touch(region.data(), kBlockBytes, blocks, writes, 1, stream); });
  };
  Points resident_us;
  Points host_us;
  Points host_write_us;
  Points collapse_us;
  Points cpu_us;
  for (const std::size_t blocks : up_to(most)) {
    const double x = static_cast<double>(blocks);
    resident_us.emplace_back(x, typical([&] {
                               region.prefetch(kDevice, stream);
                               return touch_us(blocks, false);
                             }));
    host_us.emplace_back(x, typical([&] {
                           region.prefetch(kHost, stream);
                           return touch_us(blocks, false);
                         }));
    host_write_us.emplace_back(x, typical([&] {
                                 region.prefetch(kHost, stream);
                                 return touch_us(blocks, true);
                               }));
    collapse_us.emplace_back(x, typical([&] {
                               region.prefetch(kHost, stream);
                               region.advise(cudaMemAdviseSetReadMostly, kDevice);
                               region.prefetch(kDevice, stream);  // now on both sides
                               const double us = touch_us(blocks, true);
                               region.advise(cudaMemAdviseUnsetReadMostly, kDevice);
                               return us;
                             }));
    cpu_us.emplace_back(x, typical([&] {
                          region.prefetch(kDevice, stream);
                          const auto start = Clock::now();
                          region.touch_on_host(blocks * kBlockBytes);
                          return us_since(start);
                        }));
  }
  tell("touch_on_device_us_by_blocks", resident_us);
  tell("fault_read_us_by_blocks", host_us);
  tell("fault_write_us_by_blocks", host_write_us);
  tell("collapse_us_by_blocks", collapse_us);
  tell("cpu_touch_us_by_blocks", cpu_us);

  Points fill_us;
  for (const std::size_t pages : {16, 64, 256}) {  // of 4 KiB, in one block
    fill_us.emplace_back(
        static_cast<double>(pages), typical([&] {
          region.prefetch(kHost, stream);
          return timed(stream, [&] { CHECK(cudaMemsetAsync(region.data(), 0, pages * 4096, stream)); }).done_us;
        }));
  }
  tell("memset_on_host_us_by_pages", fill_us);
}

// What faults bring in by pattern, well below the device's capacity: not a key, but what the model predicts.
void fault_rate() {
  const Stream stream;
  const Managed region(region_bytes(256 * kMiB, 1));
  region.warm_up(stream);
  const auto from_host = [&](const std::function<void()>& kernel) {
    return typical([&] {
      region.prefetch(kHost, stream);
      return timed_launch(stream, kernel);
    });
  };
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kBigPage = 16 * kPage;
  const std::size_t pages = region.bytes() / kPage;
  const std::pair<const char*, std::function<void()>> patterns[] = {
      {"all_in_order", [&] { launch_read(region.floats(), region.bytes() / sizeof(float), region.floats(), stream); }},
      {"every_page_in_order", [&] { launch_touch(region.data(), kPage, pages, false, 1, stream); }},
      {"every_page_mixed", [&] { launch_touch(region.data(), kPage, pages, false, 40503, stream); }},
      {"every_64kib_mixed",
       [&] { launch_touch(region.data(), kBigPage, region.bytes() / kBigPage, false, 40503, stream); }},
      {"one_page_a_block", [&] { launch_touch(region.data(), kBlockBytes, region.blocks(), false, 1, stream); }},
  };
  tell("region_bytes", region.bytes());
  for (const auto& [name, kernel] : patterns) tell(std::string(name) + "_ms", from_host(kernel));

  // Nothing migrates: the device reads and writes the host's pages over the link.
  region.prefetch(kHost, stream);
  region.advise(cudaMemAdviseSetPreferredLocation, kHost);
  region.advise(cudaMemAdviseSetAccessedBy, kDevice);
  tell("remote_read_ms", typical([&] { return timed_read(region, stream); }));
  tell("remote_write_ms", typical([&] { return timed_write(region, stream); }));
}

}  // namespace

const std::vector<Question> kCosts = {
    {"link", link, 10},     {"calls", calls, 5},   {"migration", migration, 12},
    {"faults", faults, 10}, {"advice", advice, 8}, {"fault_rate", fault_rate, 8},
};

}  // namespace probe
