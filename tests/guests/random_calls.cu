// Random sequences of legal calls, the same for the same seed: threads, each with its streams, events, arrays and
// graphs. Prints a digest of every result and of all data that was read back, a line a thread.
#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "tests/guests/sum.hpp"

namespace {

constexpr std::size_t kLargest = std::size_t{1} << 20;  // elements of an array
constexpr std::size_t kMostArrays = 12;

/// What one thread does; nothing in it depends on another thread but the order that events make.
class Sequence {
 public:
  Sequence(std::uint64_t seed, int steps, bool may_capture) : random_(seed), steps_(steps), may_capture_(may_capture) {
    for (cudaStream_t& stream : streams_) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }

  std::uint64_t run() {
    for (int i = 0; i < steps_; ++i) step();
    while (!arrays_.empty()) release(0);
    for (cudaStream_t stream : streams_) note(cudaStreamDestroy(stream));
    note(cudaEventDestroy(event_));
    return digest_;
  }

 private:
  struct Piece {
    float* data;
    std::size_t count;
    bool is_async;
  };

  std::size_t below(std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_); }
  cudaStream_t stream() { return streams_[below(2)]; }
  void mix(std::uint64_t word) { digest_ = (digest_ ^ word) * 0x9E3779B97F4A7C15ULL + (digest_ >> 31); }
  void note(cudaError_t error) { mix(static_cast<std::uint64_t>(error) + 1); }

  /// Streams see each other's work only behind this.
  void join() {
    note(cudaEventRecord(event_, streams_[0]));
    note(cudaStreamWaitEvent(streams_[1], event_, 0));
    note(cudaEventRecord(event_, streams_[1]));
    note(cudaStreamWaitEvent(streams_[0], event_, 0));
  }

  void allocate() {
    if (arrays_.size() == kMostArrays) return release(below(arrays_.size()));
    // From a few bytes to a few blocks, often the same size again.
    const std::size_t count = below(3) == 0 ? 1 + below(kLargest) : std::size_t{256} << below(13);
    Piece piece{nullptr, count, below(2) == 0};
    const cudaStream_t where = streams_[0];
    note(piece.is_async ? cudaMallocAsync(&piece.data, count * sizeof(float), where)
                        : cudaMalloc(&piece.data, count * sizeof(float)));
    if (piece.data == nullptr) return;
    note(cudaMemsetAsync(piece.data, 0, count * sizeof(float), where));
    join();
    arrays_.push_back(piece);
  }

  void release(std::size_t which) {
    const Piece piece = arrays_[which];
    arrays_.erase(arrays_.begin() + static_cast<std::ptrdiff_t>(which));
    join();
    note(piece.is_async ? cudaFreeAsync(piece.data, streams_[0]) : cudaFree(piece.data));
    join();
  }

  void add(const Piece& out, const Piece& a, const Piece& b, cudaStream_t where) {
    const std::size_t count = std::min(out.count, std::min(a.count, b.count));
    guest_sum<<<guests::blocks(count), guests::kThreads, 0, where>>>(out.data, a.data, b.data, count);
    note(cudaGetLastError());
  }

  void launch() {
    add(arrays_[below(arrays_.size())], arrays_[below(arrays_.size())], arrays_[below(arrays_.size())], stream());
    join();
  }

  void copy() {
    const Piece& to = arrays_[below(arrays_.size())];
    const Piece& from = arrays_[below(arrays_.size())];
    const std::size_t bytes = std::min(to.count, from.count) * sizeof(float);
    if (to.data == from.data) return;
    note(cudaMemcpyAsync(to.data, from.data, bytes, below(2) == 0 ? cudaMemcpyDeviceToDevice : cudaMemcpyDefault,
                         stream()));
    join();
  }

  void upload() {
    const Piece& to = arrays_[below(arrays_.size())];
    const std::vector<float> values(to.count, static_cast<float>(below(100)));
    note(cudaMemcpyAsync(to.data, values.data(), to.count * sizeof(float), cudaMemcpyHostToDevice, streams_[0]));
    note(cudaStreamSynchronize(streams_[0]));
    join();
  }

  void read_back() {
    const Piece& from = arrays_[below(arrays_.size())];
    std::vector<float> values(from.count);
    join();
    note(cudaMemcpyAsync(values.data(), from.data, from.count * sizeof(float), cudaMemcpyDeviceToHost, streams_[0]));
    note(cudaStreamSynchronize(streams_[0]));
    for (std::size_t i = 0; i < values.size(); i += 97) {
      std::uint32_t bits;
      std::memcpy(&bits, &values[i], sizeof bits);
      mix(bits);
    }
  }

  void ask() {
    const Piece& piece = arrays_[below(arrays_.size())];
    cudaPointerAttributes attributes{};
    note(cudaPointerGetAttributes(&attributes, piece.data + below(piece.count)));
    mix(static_cast<std::uint64_t>(attributes.type));
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    mix(static_cast<std::uint64_t>(cuMemGetAddressRange(&base, &bytes, reinterpret_cast<CUdeviceptr>(piece.data))));
    mix(base == reinterpret_cast<CUdeviceptr>(piece.data));
    mix(bytes == piece.count * sizeof(float));
  }

  /// A few launches as a graph, launched at once and thrown away, or kept and launched once more.
  void graph() {
    join();
    cudaGraph_t graph = nullptr;
    note(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeRelaxed));
    const std::size_t launches = 1 + below(4);
    for (std::size_t i = 0; i < launches; ++i) {
      add(arrays_[below(arrays_.size())], arrays_[below(arrays_.size())], arrays_[below(arrays_.size())], streams_[0]);
    }
    note(cudaStreamEndCapture(streams_[0], &graph));
    cudaGraphExec_t exec = nullptr;
    note(cudaGraphInstantiate(&exec, graph, 0));
    note(cudaGraphLaunch(exec, streams_[0]));
    note(cudaGraphLaunch(exec, streams_[0]));
    note(cudaStreamSynchronize(streams_[0]));
    note(cudaGraphExecDestroy(exec));
    note(cudaGraphDestroy(graph));
    join();
  }

  /// What a program does wrong now and then: the errors must be the driver's.
  void fail() {
    switch (below(4)) {
      case 0:
        return note(cudaFree(reinterpret_cast<void*>(std::uintptr_t{0x1234})));
      case 1: {
        void* nothing = nullptr;
        note(cudaMalloc(&nothing, 0));
        return mix(nothing == nullptr);
      }
      case 2:
        return note(cudaMemcpy(arrays_[0].data, arrays_[0].data, 0, cudaMemcpyDeviceToDevice));
      default:
        mix(static_cast<std::uint64_t>(cuMemAlloc(nullptr, 1)));
    }
    static_cast<void>(cudaGetLastError());
  }

  void step() {
    if (arrays_.size() < 3) return allocate();
    switch (below(16)) {
      case 0:
      case 1:
      case 2:
        return allocate();
      case 3:
        return release(below(arrays_.size()));
      case 4:
      case 5:
        return copy();
      case 6:
        return upload();
      case 7:
        return read_back();
      case 8:
        return ask();
      case 9:
        return fail();
      case 10:
        return may_capture_ ? graph() : launch();
      case 11:
        return note(cudaDeviceSynchronize());
      default:
        return launch();
    }
  }

  std::mt19937_64 random_;
  const int steps_;
  const bool may_capture_;
  cudaStream_t streams_[2] = {};
  cudaEvent_t event_ = nullptr;
  std::deque<Piece> arrays_;
  std::uint64_t digest_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: random_calls SEED THREADS STEPS\n");
    return 2;
  }
  const auto seed = static_cast<std::uint64_t>(std::atoll(argv[1]));
  const int threads = std::atoi(argv[2]);
  const int steps = std::atoi(argv[3]);
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(threads));
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      // A capture makes calls of other threads fail or not by the moment: only alone is it the same every time.
      Sequence sequence(seed * 1000 + static_cast<std::uint64_t>(i), steps, threads == 1);
      digests[static_cast<std::size_t>(i)] = sequence.run();
    });
  }
  for (std::thread& thread : running) thread.join();
  for (const std::uint64_t digest : digests) std::printf("%016llx\n", static_cast<unsigned long long>(digest));
}
