// What the questions of the probe share: the clock, how an answer is told, managed memory within limits, streams.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace probe {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kBlockBytes = 2 * kMiB;   // a VA block of nvidia-uvm
inline constexpr std::size_t kChunkBytes = 16 * kMiB;  // what one migration call of the library may carry

// ---- time: the machine's own, which is virtual on a simulated GPU ---------------------------------------------------

struct Clock {
  using time_point = std::int64_t;  // ns
  [[nodiscard]] static time_point now();
};
[[nodiscard]] double ms_since(Clock::time_point start);
[[nodiscard]] inline double us_since(Clock::time_point start) { return 1e3 * ms_since(start); }
/// Lets so much time pass.
void rest_ms(double ms);

/// A thread beside the main one. On a simulated GPU it has a clock of its own, as it would have a core of its own.
class Companion {
 public:
  explicit Companion(std::function<void()> body);
  Companion(const Companion&) = delete;
  Companion& operator=(const Companion&) = delete;
  ~Companion() { join(); }
  void join();

 private:
  unsigned agent_ = 0;
  std::thread thread_;
};

// ---- answers ----

/// Measured values by size, count or the like.
using Points = std::vector<std::pair<double, double>>;

void tell_to(int descriptor);
void tell(const std::string& name, double value);
void tell(const std::string& name, std::size_t value);
void tell(const std::string& name, bool value);
void tell(const std::string& name, const char* value);
void tell(const std::string& name, const Points& points);

/// Ends the question.
[[noreturn]] void give_up(const std::string& what, const char* why);
void check(cudaError_t error, const char* what);
#define CHECK(call) ::probe::check(call, #call)

[[nodiscard]] double percentile(std::vector<double> values, double percent);
[[nodiscard]] double median(std::vector<double> values);
[[nodiscard]] inline double gb_per_s(std::size_t bytes, double ms) { return static_cast<double>(bytes) / ms / 1e6; }
[[nodiscard]] inline std::string sized(const char* name, std::size_t bytes) {
  return std::string(name) + "_" + std::to_string(bytes / kMiB) + "mib";
}

// ---- memory ----

inline const cudaMemLocation kDevice{cudaMemLocationTypeDevice, 0};
inline const cudaMemLocation kHost{cudaMemLocationTypeHost, 0};

/// Makes device 0 current and reads how much may be used: a quarter of what is free on either side, and no more than
/// `at_most_bytes`.
void start_cuda(std::size_t at_most_bytes);
[[nodiscard]] std::size_t managed_limit_bytes();
/// Whether so much managed memory may be allocated beside what is.
[[nodiscard]] bool fits(std::size_t bytes);
/// The largest of wanted, wanted/2, ... of which `count` regions may be allocated.
[[nodiscard]] std::size_t region_bytes(std::size_t wanted, std::size_t count);

class Managed {
 public:
  explicit Managed(std::size_t bytes);
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;
  ~Managed();
  [[nodiscard]] char* data() const { return data_; }
  [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(data_); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::size_t blocks() const { return (bytes_ + kBlockBytes - 1) / kBlockBytes; }

  /// Enqueues the migration of the whole region, at most chunk_bytes a call.
  void enqueue_prefetch(cudaMemLocation to, cudaStream_t stream, std::size_t chunk_bytes = kChunkBytes) const;
  /// Migrates the region and waits; milliseconds.
  double prefetch(cudaMemLocation to, cudaStream_t stream, std::size_t chunk_bytes = kChunkBytes) const;
  /// Microseconds of one advise call on the whole region.
  double advise(cudaMemoryAdvise advice, cudaMemLocation location) const;
  /// The CPU writes to every page of the first bytes.
  void touch_on_host(std::size_t bytes) const;
  /// First touches every page on the host and migrates both ways, so that later migrations find their host pages
  /// allocated.
  void warm_up(cudaStream_t stream) const;

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

class Event {
 public:
  Event() { CHECK(cudaEventCreate(&event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { CHECK(cudaEventDestroy(event_)); }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

[[nodiscard]] double ms_between(const Event& begin, const Event& end);

// ---- kernels (kernels.cu) ----

void launch_empty(cudaStream_t stream);
/// A kernel of four parameters that does nothing, as count is 0.
void launch_four_parameters(float* a, const float* b, const float* c, cudaStream_t stream);
/// Holds a stream for a bounded time.
void launch_spin(double ms, cudaStream_t stream);
void launch_write(float* data, std::size_t count, float value, cudaStream_t stream);
void launch_read(const float* data, std::size_t count, float* sink, cudaStream_t stream);
void launch_triad(float* a, const float* b, const float* c, std::size_t count, cudaStream_t stream);
void launch_gather(float* out, const float* in, std::size_t count, cudaStream_t stream);
void launch_gemm(float* out, const float* a, const float* b, int n, cudaStream_t stream);
/// Touches 4 bytes at each of `count` places `stride` bytes apart, all at once; `mix` is odd: in an order mixed by it.
void launch_touch(char* data, std::size_t stride, std::size_t count, bool writes, std::size_t mix, cudaStream_t stream);

/// Milliseconds from launch to completion on an idle stream.
template <typename Launch>
double timed_launch(cudaStream_t stream, Launch launch) {
  const auto start = Clock::now();
  launch();
  CHECK(cudaStreamSynchronize(stream));
  return ms_since(start);
}

double timed_write(const Managed& region, cudaStream_t stream, float value = 2);
double timed_read(const Managed& region, cudaStream_t stream);

// ---- the questions ----

struct Question {
  const char* name;
  void (*ask)();
  double limit_s;
};

/// What the driver does (behaviour.cu), and what each thing costs that the model of tests/simgpu charges for
/// (costs.cu).
extern const std::vector<Question> kBehaviours;
extern const std::vector<Question> kCosts;

}  // namespace probe
