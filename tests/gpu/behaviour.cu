// What the driver does with managed memory: what waits for what, and which copy of a page stays.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "tests/gpu/probe.hpp"

namespace probe {
namespace {

/// Milliseconds until both are done, each in a thread of its own.
double together(const std::function<void()>& one, const std::function<void()>& other) {
  const auto start = Clock::now();
  Clock::time_point one_ended = 0;
  Companion companion([&] {
    one();
    one_ended = Clock::now();
  });
  other();
  const auto other_ended = Clock::now();
  companion.join();
  return static_cast<double>(std::max(one_ended, other_ended) - start) / 1e6;
}

/// 1: the shorter direction was free. 0: one after the other.
double overlap(double up_ms, double down_ms, double both_ms) {
  return (up_ms + down_ms - both_ms) / std::min(up_ms, down_ms);
}

// Are prefetches to the device and to the host full duplex: from two threads on idle streams, and on busy streams?
void duplex() {
  const std::size_t bytes = region_bytes(256 * kMiB, 2);
  const Managed up(bytes);
  const Managed down(bytes);
  const Stream up_stream;
  const Stream down_stream;
  up.warm_up(up_stream);
  down.warm_up(down_stream);
  const auto place = [&] {
    up.prefetch(kHost, up_stream);
    down.prefetch(kDevice, down_stream);
  };
  std::vector<double> up_ms;
  std::vector<double> down_ms;
  std::vector<double> idle_ms;
  std::vector<double> busy_ms;
  for (int round = 0; round < 5; ++round) {
    place();
    up_ms.push_back(up.prefetch(kDevice, up_stream));
    down_ms.push_back(down.prefetch(kHost, down_stream));
    place();
    idle_ms.push_back(together([&] { up.prefetch(kDevice, up_stream); }, [&] { down.prefetch(kHost, down_stream); }));
    place();
    launch_spin(20, up_stream);
    launch_spin(20, down_stream);
    const auto start = Clock::now();
    up.enqueue_prefetch(kDevice, up_stream);
    down.enqueue_prefetch(kHost, down_stream);
    up_stream.wait();
    down_stream.wait();
    busy_ms.push_back(ms_since(start) - 20.0);
  }
  tell("region_bytes", bytes);
  tell("h2d_gb_per_s", gb_per_s(bytes, median(up_ms)));
  tell("d2h_gb_per_s", gb_per_s(bytes, median(down_ms)));
  tell("idle_streams_both_gb_per_s", gb_per_s(2 * bytes, median(idle_ms)));
  tell("idle_streams_overlap", overlap(median(up_ms), median(down_ms), median(idle_ms)));
  tell("busy_streams_both_gb_per_s", gb_per_s(2 * bytes, median(busy_ms)));
  tell("busy_streams_overlap", overlap(median(up_ms), median(down_ms), median(busy_ms)));

  // What the link itself can do: the same with copies of pinned memory.
  void* pinned = nullptr;
  void* plain = nullptr;
  CHECK(cudaMallocHost(&pinned, bytes));
  CHECK(cudaMalloc(&plain, bytes));
  const auto half = bytes / 2;
  const auto copy_up = [&] {
    CHECK(cudaMemcpyAsync(plain, pinned, half, cudaMemcpyHostToDevice, up_stream));
    up_stream.wait();
  };
  const auto copy_down = [&] {
    CHECK(cudaMemcpyAsync(static_cast<char*>(pinned) + half, static_cast<char*>(plain) + half, half,
                          cudaMemcpyDeviceToHost, down_stream));
    down_stream.wait();
  };
  const auto alone_ms = [](const std::function<void()>& copy) {
    copy();
    const auto start = Clock::now();
    copy();
    return ms_since(start);
  };
  const double copy_up_ms = alone_ms(copy_up);
  const double copy_down_ms = alone_ms(copy_down);
  tell("pinned_copy_h2d_gb_per_s", gb_per_s(half, copy_up_ms));
  tell("pinned_copy_d2h_gb_per_s", gb_per_s(half, copy_down_ms));
  tell("pinned_copy_overlap", overlap(copy_up_ms, copy_down_ms, together(copy_up, copy_down)));
  CHECK(cudaFree(plain));
  CHECK(cudaFreeHost(pinned));
}

// Does what one thread asks of the driver delay launches, round trips and mmap in another?
void launch_delay() {
  const Managed region(region_bytes(256 * kMiB, 1));
  const Stream work;
  const Stream launches;
  region.warm_up(work);
  const std::pair<const char*, std::function<void()>> disturbers[] = {
      {"alone", [] { rest_ms(1); }},
      {"prefetch_16mib_calls",
       [&] {
         region.prefetch(kDevice, work);
         region.prefetch(kHost, work);
       }},
      {"prefetch_one_call",
       [&] {
         region.prefetch(kDevice, work, region.bytes());
         region.prefetch(kHost, work, region.bytes());
       }},
      {"advise",
       [&] {
         region.advise(cudaMemAdviseSetPreferredLocation, kDevice);
         region.advise(cudaMemAdviseUnsetPreferredLocation, kDevice);
       }},
  };
  for (const auto& [name, disturb] : disturbers) {
    std::atomic<bool> stop{false};
    Companion companion([&, &disturb = disturb] {
      while (!stop) disturb();
    });
    std::vector<double> launch_us;
    std::vector<double> round_trip_us;
    std::vector<double> mmap_us;
    for (int i = 0; i < 2000; ++i) {
      const auto start = Clock::now();
      launch_spin(0.2, launches);  // so that all of them span many of the other thread's calls
      launch_us.push_back(us_since(start));
      launches.wait();
      round_trip_us.push_back(us_since(start));
      const auto map_start = Clock::now();
      void* map = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (map == MAP_FAILED || munmap(map, kMiB) != 0) give_up("mmap", "failed");
      mmap_us.push_back(us_since(map_start));
    }
    stop = true;
    companion.join();
    const std::pair<const char*, const std::vector<double>*> series[] = {
        {"launch", &launch_us}, {"round_trip", &round_trip_us}, {"mmap", &mmap_us}};
    for (const auto& [what, values] : series) {
      const std::string prefix = std::string(name) + "_" + what;
      tell(prefix + "_p50_us", median(*values));
      tell(prefix + "_p99_us", percentile(*values, 99));
      tell(prefix + "_max_us", percentile(*values, 100));
    }
  }
}

// Does a prefetch that waits behind a kernel in one stream block a prefetch, or a launch, in another stream?
void waiting_prefetch() {
  constexpr double kKernel_ms = 100;
  const std::size_t bytes = region_bytes(32 * kMiB, 2);
  const Managed behind(bytes);
  const Managed beside(bytes);
  const Stream busy;
  const Stream idle;
  const Stream third;
  behind.warm_up(busy);
  beside.warm_up(idle);
  tell("prefetch_alone_ms", beside.prefetch(kDevice, idle));
  beside.prefetch(kHost, idle);
  tell("launch_alone_ms", timed_launch(third, [&] { launch_empty(third); }));

  const auto start = Clock::now();
  launch_spin(kKernel_ms, busy);
  behind.enqueue_prefetch(kDevice, busy);
  tell("waiting_prefetch_calls_ms", ms_since(start));
  tell("other_stream_launch_ms", timed_launch(third, [&] { launch_empty(third); }));
  const auto call = Clock::now();
  beside.enqueue_prefetch(kDevice, idle);
  tell("other_stream_prefetch_calls_ms", ms_since(call));
  idle.wait();
  const double done_ms = ms_since(start);
  busy.wait();
  tell("other_stream_prefetch_done_ms", done_ms);
  tell("kernel_and_waiting_prefetch_done_ms", ms_since(start));
  tell("waiting_prefetch_blocks_other_stream", done_ms >= kKernel_ms);
}

// What does a prefetch on a busy stream cost: the call itself, and from the kernel's end to the transfer's end?
void busy_stream() {
  const Managed region(region_bytes(32 * kMiB, 1));
  const Stream stream;
  region.warm_up(stream);
  const Event before;
  const Event after;
  const std::pair<const char*, cudaMemLocation> directions[] = {{"h2d", kDevice}, {"d2h", kHost}};
  for (const bool busy : {false, true}) {
    std::vector<double> call_us[2];
    std::vector<double> transfer_ms[2];
    for (int round = 0; round < 7; ++round) {
      for (int direction = 0; direction < 2; ++direction) {
        if (busy) launch_spin(10, stream);
        CHECK(cudaEventRecord(before, stream));
        const auto start = Clock::now();
        CHECK(cudaMemPrefetchAsync(region.data(), region.bytes(), directions[direction].second, 0, stream));
        call_us[direction].push_back(us_since(start));
        CHECK(cudaEventRecord(after, stream));
        stream.wait();
        transfer_ms[direction].push_back(ms_between(before, after));
      }
    }
    for (int direction = 0; direction < 2; ++direction) {
      const std::string prefix = std::string(busy ? "busy_" : "idle_") + directions[direction].first;
      tell(prefix + "_call_us", median(call_us[direction]));
      tell(prefix + "_until_done_ms", median(transfer_ms[direction]));
    }
  }
}

// Which calls wait for the device's work, and how long each takes otherwise? Every call is made on an idle device, and
// while a kernel holds the stream it names.
void blocking_calls() {
  constexpr double kKernel_ms = 20;
  const std::size_t bytes = region_bytes(16 * kMiB, 2);
  const Stream stream;
  const Managed region(bytes);
  region.warm_up(stream);
  void* pinned = nullptr;
  void* plain = nullptr;
  CHECK(cudaMallocHost(&pinned, bytes));
  CHECK(cudaMalloc(&plain, bytes));
  std::vector<char> pageable(bytes, 1);
  const Event event;
  cudaMemLocation to = kDevice;
  void* address = region.data();
  std::size_t size = bytes;
  std::size_t first = 0;
  void* allocated = nullptr;
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"launch", [&] { launch_empty(stream); }},
      {"event_record", [&] { CHECK(cudaEventRecord(event, stream)); }},
      {"stream_query", [&] { static_cast<void>(cudaStreamQuery(stream)); }},
      {"mem_get_info",
       [&] {
         std::size_t free_bytes = 0;
         std::size_t total_bytes = 0;
         CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
       }},
      {"pointer_get_attributes",
       [&] {
         cudaPointerAttributes attributes{};
         CHECK(cudaPointerGetAttributes(&attributes, plain));
       }},
      {"memcpy_h2d_async_pinned",
       [&] { CHECK(cudaMemcpyAsync(plain, pinned, bytes, cudaMemcpyHostToDevice, stream)); }},
      {"memcpy_h2d_async_pageable",
       [&] { CHECK(cudaMemcpyAsync(plain, pageable.data(), bytes, cudaMemcpyHostToDevice, stream)); }},
      {"memcpy_d2h_async_pinned",
       [&] { CHECK(cudaMemcpyAsync(pinned, plain, bytes, cudaMemcpyDeviceToHost, stream)); }},
      {"memset_async", [&] { CHECK(cudaMemsetAsync(plain, 0, bytes, stream)); }},
      {"prefetch_to_device", [&] { CHECK(cudaMemPrefetchAsync(address, bytes, kDevice, 0, stream)); }},
      {"prefetch_to_host", [&] { CHECK(cudaMemPrefetchAsync(address, bytes, kHost, 0, stream)); }},
      {"discard", [&] { CHECK(cudaMemDiscardBatchAsync(&address, &size, 1, 0, stream)); }},
      {"discard_and_prefetch",
       [&] { CHECK(cudaMemDiscardAndPrefetchBatchAsync(&address, &size, 1, &to, &first, 1, 0, stream)); }},
      {"advise", [&] { CHECK(cudaMemAdvise(address, bytes, cudaMemAdviseSetPreferredLocation, kDevice)); }},
      {"malloc", [&] { CHECK(cudaMalloc(&allocated, bytes)); }},
      {"free", [&] { CHECK(cudaFree(allocated)); }},
      {"malloc_managed", [&] { CHECK(cudaMallocManaged(&allocated, bytes)); }},
      {"free_managed", [&] { CHECK(cudaFree(allocated)); }},
      {"malloc_async", [&] { CHECK(cudaMallocAsync(&allocated, bytes, stream)); }},
      {"free_async", [&] { CHECK(cudaFreeAsync(allocated, stream)); }},
  };
  for (const auto& [name, call] : calls) {
    for (const bool busy : {false, true}) {
      // What a call takes must be there when it is asked again.
      const bool is_free = std::strncmp(name, "free", 4) == 0;
      if (is_free && busy) {
        if (std::strcmp(name, "free") == 0) CHECK(cudaMalloc(&allocated, bytes));
        if (std::strcmp(name, "free_managed") == 0) CHECK(cudaMallocManaged(&allocated, bytes));
        if (std::strcmp(name, "free_async") == 0) CHECK(cudaMallocAsync(&allocated, bytes, stream));
      }
      if (!is_free && busy && std::strstr(name, "malloc") != nullptr) {
        CHECK(std::strcmp(name, "malloc_async") == 0 ? cudaFreeAsync(allocated, stream) : cudaFree(allocated));
      }
      stream.wait();
      if (busy) launch_spin(kKernel_ms, stream);
      const auto start = Clock::now();
      call();
      const double us = us_since(start);
      stream.wait();
      tell(std::string(name) + (busy ? "_busy_us" : "_idle_us"), us);
      if (busy) tell(std::string(name) + "_waits", us > 500 * kKernel_ms);
    }
  }
  CHECK(cudaFree(plain));
  CHECK(cudaFreeHost(pinned));
}

// Which of the calls that the library makes of its own are legal while another stream is captured, from the thread that
// captures and from another one; and is the capture still good afterwards?
void capture() {
  const std::size_t bytes = region_bytes(4 * kMiB, 1);
  const Stream captured;
  const Stream other;
  const Managed region(bytes);
  region.warm_up(other);
  const Event event;
  void* address = region.data();
  std::size_t size = bytes;
  const std::pair<const char*, std::function<cudaError_t()>> calls[] = {
      {"prefetch", [&] { return cudaMemPrefetchAsync(address, bytes, kDevice, 0, other); }},
      {"discard", [&] { return cudaMemDiscardBatchAsync(&address, &size, 1, 0, other); }},
      {"advise", [&] { return cudaMemAdvise(address, bytes, cudaMemAdviseSetPreferredLocation, kDevice); }},
      {"event_record", [&] { return cudaEventRecord(event, other); }},
      {"event_query", [&] { return cudaEventQuery(event); }},
      {"stream_query", [&] { return cudaStreamQuery(other); }},
      {"stream_synchronize", [&] { return cudaStreamSynchronize(other); }},
      {"malloc_managed",
       [&] {
         void* allocated = nullptr;
         const cudaError_t error = cudaMallocManaged(&allocated, bytes);
         return error != cudaSuccess ? error : cudaFree(allocated);
       }},
  };
  const std::pair<const char*, cudaStreamCaptureMode> modes[] = {{"global", cudaStreamCaptureModeGlobal},
                                                                 {"thread_local", cudaStreamCaptureModeThreadLocal},
                                                                 {"relaxed", cudaStreamCaptureModeRelaxed}};
  const auto exchanged = [](const std::function<cudaError_t()>& call) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    const cudaError_t error = call();
    CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    return error;
  };
  for (const auto& [mode_name, mode] : modes) {
    for (const auto& [call_name, call] : calls) {
      for (const char* who :
           {"capturing_thread", "capturing_thread_exchanged", "other_thread", "other_thread_exchanged"}) {
        other.wait();
        CHECK(cudaStreamBeginCapture(captured, mode));
        launch_empty(captured);
        cudaError_t error = cudaSuccess;
        const bool is_exchanged = std::strstr(who, "exchanged") != nullptr;
        const auto make = [&, &call = call] { error = is_exchanged ? exchanged(call) : call(); };
        if (std::strncmp(who, "other", 5) == 0) {
          Companion(make).join();
        } else {
          make();
        }
        cudaGraph_t graph = nullptr;
        const cudaError_t ended = cudaStreamEndCapture(captured, &graph);
        if (graph != nullptr) CHECK(cudaGraphDestroy(graph));
        static_cast<void>(cudaGetLastError());
        const std::string name = std::string(mode_name) + "_" + call_name + "_" + who;
        tell(name, cudaGetErrorName(error));
        if (ended != cudaSuccess) tell(name + "_capture_ends", cudaGetErrorName(ended));
      }
    }
  }
}

// How fast is a prefetch, by size, each way, the first time (host pages are allocated) and later?
void prefetch_rate() {
  const Stream stream;
  for (const std::size_t bytes : {2 * kMiB, 8 * kMiB, 32 * kMiB, 128 * kMiB, 512 * kMiB}) {
    if (!fits(bytes)) break;
    const Managed region(bytes);
    timed_write(region, stream);  // populated on the device, as a framework's tensor is
    for (const char* time : {"first", "second", "third"}) {
      for (const auto& [way, to] : {std::pair("d2h", kHost), std::pair("h2d", kDevice)}) {
        const auto start = Clock::now();
        CHECK(cudaMemPrefetchAsync(region.data(), bytes, to, 0, stream));
        const double call_us = us_since(start);
        stream.wait();
        const std::string prefix = sized(way, bytes) + "_" + time;
        tell(prefix + "_call_us", call_us);
        tell(prefix + "_gb_per_s", gb_per_s(bytes, ms_since(start)));
      }
    }
  }
}

// Setting and unsetting read-mostly: how long, and is the copy that stays the device's or the host's?
void read_mostly() {
  const Stream stream;
  for (const std::size_t bytes : {2 * kMiB, 64 * kMiB, 1024 * kMiB}) {
    if (!fits(bytes)) break;
    const Managed region(bytes);
    region.warm_up(stream);
    const double from_host_ms = timed_read(region, stream);
    const double from_device_ms = timed_read(region, stream);
    tell(sized("read_from_host", bytes) + "_ms", from_host_ms);
    tell(sized("read_from_device", bytes) + "_ms", from_device_ms);
    for (const bool preferred : {false, true}) {
      const std::string suffix = std::string(preferred ? "_preferring_device" : "_no_preference");
      region.prefetch(kHost, stream);
      if (preferred) region.advise(cudaMemAdviseSetPreferredLocation, kDevice);
      tell(sized("set", bytes) + suffix + "_us", region.advise(cudaMemAdviseSetReadMostly, kDevice));
      region.prefetch(kDevice, stream);  // now on both sides
      tell(sized("unset", bytes) + suffix + "_us", region.advise(cudaMemAdviseUnsetReadMostly, kDevice));
      const double read_ms = timed_read(region, stream);
      tell(sized("read_after_unset", bytes) + suffix + "_ms", read_ms);
      // A read of what stayed on the host migrates it. Compare on a logarithmic scale: the two lie far apart.
      tell(sized("stays", bytes) + suffix, read_ms * read_ms < from_host_ms * from_device_ms ? "device" : "host");
      if (preferred) region.advise(cudaMemAdviseUnsetPreferredLocation, kDevice);
    }
  }
}

// What do copies and fills into managed memory cost by where it is, beside cudaMalloc memory?
void copies() {
  const Stream stream;
  for (const std::size_t bytes : {16 * kMiB, 64 * kMiB, 256 * kMiB}) {
    if (!fits(bytes)) break;
    void* pinned = nullptr;
    CHECK(cudaMallocHost(&pinned, bytes));
    std::memset(pinned, 3, bytes);
    double slowest_ms = 0;
    for (const bool fill : {true, false}) {
      const auto timed = [&](void* target) {
        const auto start = Clock::now();
        if (fill) {
          CHECK(cudaMemsetAsync(target, 0, bytes, stream));
        } else {
          CHECK(cudaMemcpyAsync(target, pinned, bytes, cudaMemcpyHostToDevice, stream));
        }
        stream.wait();
        slowest_ms = std::max(slowest_ms, ms_since(start));
        return ms_since(start);
      };
      const std::string name = sized(fill ? "memset" : "memcpy_h2d", bytes);
      void* plain = nullptr;
      CHECK(cudaMalloc(&plain, bytes));
      timed(plain);
      tell(name + "_cudamalloc_ms", timed(plain));
      CHECK(cudaFree(plain));
      const Managed region(bytes);
      tell(name + "_fresh_ms", timed(region.data()));
      region.prefetch(kHost, stream);
      tell(name + "_on_host_ms", timed(region.data()));
      region.prefetch(kDevice, stream);
      tell(name + "_on_device_ms", timed(region.data()));
    }
    CHECK(cudaFreeHost(pinned));
    if (slowest_ms > 1500) break;  // four times the size would not end in time
  }
}

// Is managed memory that is resident as fast as cudaMalloc memory?
void resident() {
  const Stream stream;
  const std::size_t bytes = region_bytes(256 * kMiB, 3);
  const std::size_t count = bytes / sizeof(float);
  int n = 2048;
  while (static_cast<std::size_t>(n) * static_cast<std::size_t>(n) > count) n /= 2;
  const Managed managed[] = {Managed(bytes), Managed(bytes), Managed(bytes)};
  float* sets[2][3];
  for (int i = 0; i < 3; ++i) {
    managed[i].prefetch(kDevice, stream);
    sets[0][i] = managed[i].floats();
    CHECK(cudaMalloc(&sets[1][i], bytes));
    for (const auto& set : sets) CHECK(cudaMemsetAsync(set[i], 0, bytes, stream));
  }
  stream.wait();
  const std::pair<const char*, std::function<void(float**)>> kernels[] = {
      {"triad", [&](float** x) { launch_triad(x[0], x[1], x[2], count, stream); }},
      {"gemm", [&](float** x) { launch_gemm(x[0], x[1], x[2], n, stream); }},
      {"random_gather", [&](float** x) { launch_gather(x[0], x[1], count, stream); }},
      {"thousand_small_launches",
       [&](float** x) {
         for (int i = 0; i < 1000; ++i) launch_triad(x[0], x[1], x[2], 1024, stream);
       }},
  };
  for (const auto& [name, kernel] : kernels) {
    std::vector<double> ms[2];
    for (int round = 0; round < 7; ++round) {
      for (int set = 0; set < 2; ++set) {
        ms[set].push_back(timed_launch(stream, [&, &kernel = kernel] { kernel(sets[set]); }));
      }
    }
    tell(std::string(name) + "_managed_ms", median(ms[0]));
    tell(std::string(name) + "_cudamalloc_ms", median(ms[1]));
  }
  for (float* plain : sets[1]) CHECK(cudaFree(plain));
}

// What does discard cost, and the write after it? Nothing here relies on what a discarded page holds.
void discard() {
  const Stream stream;
  const Managed region(region_bytes(64 * kMiB, 1));
  const double blocks = static_cast<double>(region.blocks());
  region.warm_up(stream);
  void* pointer = region.data();
  std::size_t bytes = region.bytes();
  cudaMemLocation to = kDevice;
  std::size_t first = 0;
  std::vector<double> plain_us;
  std::vector<double> discard_us;
  std::vector<double> bare_us;
  std::vector<double> revive_us;
  std::vector<double> revived_us;
  bool read_back = true;
  for (int round = 0; round < 5; ++round) {
    region.prefetch(kDevice, stream);
    plain_us.push_back(1e3 * timed_write(region, stream));
    const auto timed_discard = [&] {
      const auto start = Clock::now();
      CHECK(cudaMemDiscardBatchAsync(&pointer, &bytes, 1, 0, stream));
      stream.wait();
      return us_since(start);
    };
    discard_us.push_back(timed_discard());
    const auto value = static_cast<float>(round + 10);
    bare_us.push_back(1e3 * timed_write(region, stream, value));
    float last = 0;
    CHECK(cudaMemcpy(&last, region.data() + bytes - sizeof(float), sizeof(float), cudaMemcpyDeviceToHost));
    read_back = read_back && last == value;

    const auto start = Clock::now();
    CHECK(cudaMemDiscardAndPrefetchBatchAsync(&pointer, &bytes, 1, &to, &first, 1, 0, stream));
    stream.wait();
    revive_us.push_back(us_since(start));
    revived_us.push_back(1e3 * timed_write(region, stream));
  }
  tell("discard_us_per_block", median(discard_us) / blocks);
  tell("discard_and_prefetch_us_per_block", median(revive_us) / blocks);
  tell("plain_write_us_per_block", median(plain_us) / blocks);
  tell("write_after_discard_us_per_block", median(bare_us) / blocks);
  tell("write_after_discard_and_prefetch_us_per_block", median(revived_us) / blocks);
  tell("write_after_discard_read_back", read_back);
}

}  // namespace

const std::vector<Question> kBehaviours = {
    {"duplex", duplex, 8},
    {"launch_delay", launch_delay, 8},
    {"waiting_prefetch", waiting_prefetch, 5},
    {"busy_stream", busy_stream, 5},
    {"blocking_calls", blocking_calls, 8},
    {"capture", capture, 5},
    {"prefetch_rate", prefetch_rate, 8},
    {"read_mostly", read_mostly, 8},
    {"resident", resident, 6},
    {"copies", copies, 10},
    {"discard", discard, 5},
};

}  // namespace probe
