// Asks a real GPU what documents and driver source leave open about managed memory. No shim is involved.
//
// usage: probe            each answer as one JSON line on stderr as it comes, one JSON document on stdout at the end
// exit status: 0 all questions answered; 1 some failed or ran out of time; 77 no GPU to ask
//
// Safe on a card that others use: managed memory stays below a quarter of what is free, so the driver never has to
// evict. Each question is a child process, forked before any CUDA call, with a time limit of its own. It writes one
// JSON member a line, so that what it learned before it hung is kept. If a killed child does not die, the driver is
// stuck and nothing more is asked.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kBlockBytes = 2 * kMiB;   // a VA block of nvidia-uvm
constexpr std::size_t kChunkBytes = 16 * kMiB;  // what one migration call of the library may carry
constexpr unsigned kThreads = 256;
constexpr int kNoGpu = 77;  // CTest's and automake's "skipped"
constexpr double kTotalLimit_s = 85.0;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double gb_per_s(std::size_t bytes, double ms) { return static_cast<double>(bytes) / ms / 1e6; }

double percentile(std::vector<double> values, double percent) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(static_cast<double>(values.size() - 1) * percent / 100.0)];
}

double median(std::vector<double> values) { return percentile(std::move(values), 50); }

// ---- the child's side: answers and CUDA ---------------------------------------------------------------------------

FILE* answer = nullptr;  // the pipe to the parent

void tell(const std::string& name, double value) { std::fprintf(answer, "\"%s\": %.6g\n", name.c_str(), value); }
void tell(const std::string& name, std::size_t value) { std::fprintf(answer, "\"%s\": %zu\n", name.c_str(), value); }
void tell(const std::string& name, bool value) {
  std::fprintf(answer, "\"%s\": %s\n", name.c_str(), value ? "true" : "false");
}
void tell(const std::string& name, const char* value) { std::fprintf(answer, "\"%s\": \"%s\"\n", name.c_str(), value); }

[[noreturn]] void give_up(const char* what, const char* why) {
  tell("error", (std::string(what) + ": " + why).c_str());
  std::fflush(answer);
  std::_Exit(1);
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) give_up(what, cudaGetErrorString(error));
}
#define CHECK(call) check(call, #call)

const cudaMemLocation kDevice{cudaMemLocationTypeDevice, 0};
const cudaMemLocation kHost{cudaMemLocationTypeHost, 0};

std::size_t managed_limit_bytes = 0;
std::size_t managed_bytes = 0;

void start_cuda() {
  CHECK(cudaSetDevice(0));
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  // Migrated pages need room on both sides.
  const std::size_t host_free_bytes =
      static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  managed_limit_bytes = std::min(free_bytes, host_free_bytes) / 4;
}

bool fits(std::size_t bytes) { return managed_bytes + bytes <= managed_limit_bytes; }

/// The largest of wanted, wanted/2, ... of which `count` regions may be allocated.
std::size_t region_bytes(std::size_t wanted, std::size_t count) {
  while (!fits(wanted * count) && wanted > kBlockBytes) wanted /= 2;
  return wanted;
}

class Managed {
 public:
  explicit Managed(std::size_t bytes) : bytes_(bytes) {
    if (!fits(bytes)) give_up("managed allocation", "it would pass a quarter of the free memory");
    CHECK(cudaMallocManaged(&data_, bytes));
    managed_bytes += bytes;
  }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;
  ~Managed() {
    CHECK(cudaFree(data_));
    managed_bytes -= bytes_;
  }
  char* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  std::size_t bytes() const { return bytes_; }
  std::size_t blocks() const { return (bytes_ + kBlockBytes - 1) / kBlockBytes; }

  /// Enqueues the migration of the whole region, at most chunk_bytes a call.
  void enqueue_prefetch(cudaMemLocation to, cudaStream_t stream, std::size_t chunk_bytes = kChunkBytes) const {
    for (std::size_t done = 0; done < bytes_; done += chunk_bytes) {
      CHECK(cudaMemPrefetchAsync(data_ + done, std::min(chunk_bytes, bytes_ - done), to, 0, stream));
    }
  }
  /// Migrates the region and waits; milliseconds.
  double prefetch(cudaMemLocation to, cudaStream_t stream, std::size_t chunk_bytes = kChunkBytes) const {
    const auto start = Clock::now();
    enqueue_prefetch(to, stream, chunk_bytes);
    CHECK(cudaStreamSynchronize(stream));
    return ms_since(start);
  }
  /// Microseconds of one advise call on the whole region.
  double advise(cudaMemoryAdvise advice, cudaMemLocation location) const {
    const auto start = Clock::now();
    CHECK(cudaMemAdvise(data_, bytes_, advice, location));
    return 1e3 * ms_since(start);
  }
  /// First touches every page on the host and migrates both ways, so that later migrations find their host pages
  /// allocated.
  void warm_up(cudaStream_t stream) const {
    std::memset(data_, 1, bytes_);
    prefetch(kDevice, stream);
    prefetch(kHost, stream);
  }

 private:
  char* data_ = nullptr;
  std::size_t bytes_;
};

class Stream {
 public:
  Stream() { CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { CHECK(cudaStreamDestroy(stream_)); }
  operator cudaStream_t() const { return stream_; }
  void wait() const { CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

__global__ void empty() {}

// Holds a stream for a bounded time.
__global__ void spin(std::uint64_t ns) {
  std::uint64_t start;
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < ns);
}

__global__ void write_all(float* data, std::size_t count, float value) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) data[i] = value;
}

__global__ void read_all(const float* data, std::size_t count, float* sink) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  float sum = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) sum += data[i];
  if (sum == 1234.5F) *sink = sum;  // never: keeps the reads
}

__global__ void triad(float* a, const float* b, const float* c, std::size_t count) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    a[i] = b[i] + 3 * c[i];
}

__global__ void gather(float* out, const float* in, std::size_t count) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    out[i] = in[(z ^ (z >> 31)) % count];
  }
}

constexpr int kTile = 16;

__global__ void gemm(float* out, const float* a, const float* b, int n) {
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile];
  const int row = static_cast<int>(blockIdx.y) * kTile + static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * kTile + static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int k = 0; k < n; k += kTile) {
    tile_a[threadIdx.y][threadIdx.x] = a[row * n + k + static_cast<int>(threadIdx.x)];
    tile_b[threadIdx.y][threadIdx.x] = b[(k + static_cast<int>(threadIdx.y)) * n + column];
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  out[row * n + column] = sum;
}

unsigned wide_grid() {
  static const int processors = [] {
    int count = 0;
    CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    return count;
  }();
  return static_cast<unsigned>(processors) * 8;
}

/// Milliseconds from launch to completion on an idle stream.
template <typename Launch>
double timed_launch(cudaStream_t stream, Launch launch) {
  const auto start = Clock::now();
  launch();
  CHECK(cudaGetLastError());
  CHECK(cudaStreamSynchronize(stream));
  return ms_since(start);
}

double timed_write(const Managed& region, cudaStream_t stream, float value = 2) {
  return timed_launch(stream, [&] {
    write_all<<<wide_grid(), kThreads, 0, stream>>>(region.floats(), region.bytes() / sizeof(float), value);
  });
}

double timed_read(const Managed& region, cudaStream_t stream) {
  return timed_launch(stream, [&] {
    read_all<<<wide_grid(), kThreads, 0, stream>>>(region.floats(), region.bytes() / sizeof(float), region.floats());
  });
}

std::string sized(const char* name, std::size_t bytes) {
  return std::string(name) + "_" + std::to_string(bytes / kMiB) + "mib";
}

// ---- the questions ----

void device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::fprintf(stderr, "probe: no GPU to ask: %s\n",
                 error == cudaSuccess ? "the driver counts 0 devices" : cudaGetErrorString(error));
    std::_Exit(kNoGpu);
  }
  int concurrent = 0;
  CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (concurrent == 0) {
    std::fprintf(stderr, "probe: no GPU to ask: device 0 has no concurrentManagedAccess, which prefetch needs\n");
    std::_Exit(kNoGpu);
  }
  start_cuda();
  cudaDeviceProp properties{};
  CHECK(cudaGetDeviceProperties(&properties, 0));
  int driver = 0;
  int pageable = 0;
  int copy_engines = 0;
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, 0));
  CHECK(cudaDeviceGetAttribute(&copy_engines, cudaDevAttrAsyncEngineCount, 0));
  tell("name", properties.name);
  tell("compute_capability", (std::to_string(properties.major) + "." + std::to_string(properties.minor)).c_str());
  tell("driver_version", static_cast<std::size_t>(driver));
  tell("pageable_memory_access", pageable != 0);
  tell("copy_engines", static_cast<std::size_t>(copy_engines));
  tell("total_bytes", properties.totalGlobalMem);
  tell("managed_limit_bytes", managed_limit_bytes);
}

/// Milliseconds until both are done, each in a thread of its own.
double together(const std::function<void()>& one, const std::function<void()>& other) {
  const auto start = Clock::now();
  std::thread thread(one);
  other();
  thread.join();
  return ms_since(start);
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
    spin<<<1, 1, 0, up_stream>>>(20'000'000);
    spin<<<1, 1, 0, down_stream>>>(20'000'000);
    CHECK(cudaGetLastError());
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
      {"alone", [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }},
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
    std::thread thread([&, &disturb = disturb] {
      while (!stop) disturb();
    });
    std::vector<double> launch_us;
    std::vector<double> round_trip_us;
    std::vector<double> mmap_us;
    for (const auto begin = Clock::now(); ms_since(begin) < 700;) {
      const auto start = Clock::now();
      empty<<<1, 1, 0, launches>>>();
      launch_us.push_back(1e3 * ms_since(start));
      CHECK(cudaGetLastError());
      launches.wait();
      round_trip_us.push_back(1e3 * ms_since(start));
      const auto map_start = Clock::now();
      void* map = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (map == MAP_FAILED || munmap(map, kMiB) != 0) give_up("mmap", "failed");
      mmap_us.push_back(1e3 * ms_since(map_start));
    }
    stop = true;
    thread.join();
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
  tell("launch_alone_ms", timed_launch(third, [&] { empty<<<1, 1, 0, third>>>(); }));

  const auto start = Clock::now();
  spin<<<1, 1, 0, busy>>>(static_cast<std::uint64_t>(kKernel_ms * 1e6));
  CHECK(cudaGetLastError());
  behind.enqueue_prefetch(kDevice, busy);
  tell("waiting_prefetch_calls_ms", ms_since(start));
  tell("other_stream_launch_ms", timed_launch(third, [&] { empty<<<1, 1, 0, third>>>(); }));
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
  cudaEvent_t before = nullptr;
  cudaEvent_t after = nullptr;
  CHECK(cudaEventCreate(&before));
  CHECK(cudaEventCreate(&after));
  const std::pair<const char*, cudaMemLocation> directions[] = {{"h2d", kDevice}, {"d2h", kHost}};
  for (const bool busy : {false, true}) {
    std::vector<double> call_us[2];
    std::vector<double> transfer_ms[2];
    for (int round = 0; round < 7; ++round) {
      for (int direction = 0; direction < 2; ++direction) {
        if (busy) spin<<<1, 1, 0, stream>>>(10'000'000);
        CHECK(cudaEventRecord(before, stream));
        const auto start = Clock::now();
        CHECK(cudaMemPrefetchAsync(region.data(), region.bytes(), directions[direction].second, 0, stream));
        call_us[direction].push_back(1e3 * ms_since(start));
        CHECK(cudaEventRecord(after, stream));
        stream.wait();
        float ms = 0;
        CHECK(cudaEventElapsedTime(&ms, before, after));
        transfer_ms[direction].push_back(static_cast<double>(ms));
      }
    }
    for (int direction = 0; direction < 2; ++direction) {
      const std::string prefix = std::string(busy ? "busy_" : "idle_") + directions[direction].first;
      tell(prefix + "_call_us", median(call_us[direction]));
      tell(prefix + "_until_done_ms", median(transfer_ms[direction]));
    }
  }
  CHECK(cudaEventDestroy(before));
  CHECK(cudaEventDestroy(after));
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
        const double call_us = 1e3 * ms_since(start);
        stream.wait();
        const std::string prefix = sized(way, bytes) + "_" + time;
        tell(prefix + "_call_us", call_us);
        tell(prefix + "_gb_per_s", gb_per_s(bytes, ms_since(start)));
      }
    }
  }
}

// What does advice cost per block, and a device write that collapses read-mostly copies?
void advise_cost() {
  const Stream stream;
  const Managed region(region_bytes(256 * kMiB, 1));
  const double blocks = static_cast<double>(region.blocks());
  region.warm_up(stream);
  const std::pair<const char*, std::pair<cudaMemoryAdvise, cudaMemoryAdvise>> kinds[] = {
      {"preferred_location", {cudaMemAdviseSetPreferredLocation, cudaMemAdviseUnsetPreferredLocation}},
      {"accessed_by", {cudaMemAdviseSetAccessedBy, cudaMemAdviseUnsetAccessedBy}},
      {"read_mostly", {cudaMemAdviseSetReadMostly, cudaMemAdviseUnsetReadMostly}},
  };
  for (const auto& [name, advice] : kinds) {
    std::vector<double> set_us;
    std::vector<double> unset_us;
    for (int round = 0; round < 5; ++round) {
      region.prefetch(kDevice, stream);
      set_us.push_back(region.advise(advice.first, kDevice));
      unset_us.push_back(region.advise(advice.second, kDevice));
    }
    tell(std::string(name) + "_set_us_per_block", median(set_us) / blocks);
    tell(std::string(name) + "_unset_us_per_block", median(unset_us) / blocks);
  }
  std::vector<double> plain_ms;
  std::vector<double> collapse_ms;
  for (int round = 0; round < 5; ++round) {
    region.prefetch(kHost, stream);
    region.prefetch(kDevice, stream);
    plain_ms.push_back(timed_write(region, stream));
    region.prefetch(kHost, stream);
    region.advise(cudaMemAdviseSetReadMostly, kDevice);
    region.prefetch(kDevice, stream);  // now on both sides
    collapse_ms.push_back(timed_write(region, stream));
    region.advise(cudaMemAdviseUnsetReadMostly, kDevice);
  }
  tell("plain_write_us_per_block", 1e3 * median(plain_ms) / blocks);
  tell("collapsing_write_us_per_block", 1e3 * median(collapse_ms) / blocks);
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
  const auto tiles = static_cast<unsigned>(n / kTile);
  const std::pair<const char*, std::function<void(float**)>> kernels[] = {
      {"triad", [&](float** x) { triad<<<wide_grid(), kThreads, 0, stream>>>(x[0], x[1], x[2], count); }},
      {"gemm", [&](float** x) { gemm<<<dim3(tiles, tiles), dim3(kTile, kTile), 0, stream>>>(x[0], x[1], x[2], n); }},
      {"random_gather", [&](float** x) { gather<<<wide_grid(), kThreads, 0, stream>>>(x[0], x[1], count); }},
      {"thousand_small_launches",
       [&](float** x) {
         for (int i = 0; i < 1000; ++i) triad<<<4, kThreads, 0, stream>>>(x[0], x[1], x[2], 1024);
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
      return 1e3 * ms_since(start);
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
    revive_us.push_back(1e3 * ms_since(start));
    revived_us.push_back(1e3 * timed_write(region, stream));
  }
  tell("discard_us_per_block", median(discard_us) / blocks);
  tell("discard_and_prefetch_us_per_block", median(revive_us) / blocks);
  tell("plain_write_us_per_block", median(plain_us) / blocks);
  tell("write_after_discard_us_per_block", median(bare_us) / blocks);
  tell("write_after_discard_and_prefetch_us_per_block", median(revived_us) / blocks);
  tell("write_after_discard_read_back", read_back);
}

struct Question {
  const char* name;
  void (*ask)();
  double limit_s;
};

// Safest and most wanted first.
constexpr Question kQuestions[] = {
    {"duplex", duplex, 12},           {"launch_delay", launch_delay, 10},  {"waiting_prefetch", waiting_prefetch, 6},
    {"busy_stream", busy_stream, 6},  {"prefetch_rate", prefetch_rate, 8}, {"advise_cost", advise_cost, 8},
    {"read_mostly", read_mostly, 10}, {"resident", resident, 8},           {"copies", copies, 12},
    {"discard", discard, 6},
};

// ---- the parent's side ----

struct Answer {
  std::string members;  ///< JSON members, joined
  bool stuck = false;   ///< the child was killed and did not die
  int status = 0;       ///< exit status of the child, -1 when it was killed
};

Answer ask(const Question& question, double limit_s) {
  Answer result;
  int ends[2];
  if (pipe(ends) != 0) {
    std::perror("probe: pipe");
    std::exit(1);
  }
  std::fflush(nullptr);
  const auto start = Clock::now();
  const pid_t child = fork();
  if (child < 0) {
    std::perror("probe: fork");
    std::exit(1);
  }
  if (child == 0) {
    close(ends[0]);
    answer = fdopen(ends[1], "w");
    setvbuf(answer, nullptr, _IOLBF, BUFSIZ);
    if (question.ask != device) start_cuda();
    question.ask();
    std::fflush(answer);
    std::_Exit(0);  // no exit handlers: the context's teardown is not part of the question
  }
  close(ends[1]);
  std::string text;
  bool open = true;
  while (open && ms_since(start) < 1e3 * limit_s) {
    pollfd wait{ends[0], POLLIN, 0};
    if (poll(&wait, 1, 50) > 0) {
      char buffer[4096];
      const ssize_t size = read(ends[0], buffer, sizeof(buffer));
      if (size > 0) text.append(buffer, static_cast<std::size_t>(size));
      open = size > 0;
    }
  }
  close(ends[0]);
  if (open) kill(child, SIGKILL);
  int status = 0;
  const auto killed = Clock::now();
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (ms_since(killed) > 3000) {
      kill(child, SIGKILL);
      result.stuck = ms_since(killed) > 5000;
      if (result.stuck) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  result.status = !result.stuck && WIFEXITED(status) ? WEXITSTATUS(status) : -1;

  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    result.members += text.substr(begin, end - begin) + ", ";
  }
  const char* outcome = result.stuck         ? "killed at its time limit, and did not die"
                        : open               ? "killed at its time limit"
                        : result.status == 0 ? "answered"
                        : result.status > 0  ? "failed"
                                             : "crashed";
  char tail[128];
  std::snprintf(tail, sizeof(tail), "\"outcome\": \"%s\", \"seconds\": %.3g", outcome, ms_since(start) / 1e3);
  result.members += tail;
  return result;
}

}  // namespace

int main() {
  const auto start = Clock::now();
  // A kernel loaded at its first launch could wait for the ones that run, and be measured as something else.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const Answer card = ask({"device", device, 15}, 15);
  if (card.status == kNoGpu) return kNoGpu;
  std::string document = "{\"schema\": 1, \"device\": {" + card.members + "}";
  std::fprintf(stderr, "{\"device\": {%s}}\n", card.members.c_str());
  bool complete = card.status == 0;
  bool stuck = card.stuck;
  for (const Question& question : kQuestions) {
    const double left_s = kTotalLimit_s - ms_since(start) / 1e3;
    Answer result;
    if (stuck || left_s < 2) {
      result.status = -1;
      result.members = stuck ? "\"outcome\": \"not asked: an earlier question left the driver stuck\""
                             : "\"outcome\": \"not asked: no time left\"";
    } else {
      result = ask(question, std::min(question.limit_s, left_s));
    }
    complete = complete && result.status == 0;
    stuck = stuck || result.stuck;
    const std::string member = std::string("\"") + question.name + "\": {" + result.members + "}";
    std::fprintf(stderr, "{%s}\n", member.c_str());
    document += ", " + member;
  }
  std::printf("%s}\n", document.c_str());
  return complete ? 0 : 1;
}
