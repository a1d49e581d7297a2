// Random tensors on several streams, each filled with a value of its own and checked as long as it lives: what is freed
// and used again too early, or discarded too late, shows as a wrong word.
//
// usage: tensor_churn SEED SEQUENCES [iterations|use-after-free]
// Prints the tensors made, the words found wrong and whether the pool's figures agreed all the time. By `iterations` a
// sequence comes again and again, as training does, until another takes its place. By `use-after-free` it looks at a
// tensor that it has freed, which must be noticed.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/guests/tensor_churn.hpp"

extern "C" __global__ void churn_fill(churn::Word* data, std::size_t words, churn::Word value) {
  if (blockIdx.x == 0 && threadIdx.x == 0) churn::fill(data, words, value);
}
extern "C" __global__ void churn_check(const churn::Word* data, std::size_t words, churn::Word value,
                                       churn::Word* wrong) {
  if (blockIdx.x == 0 && threadIdx.x == 0) churn::check(data, words, value, wrong);
}

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

constexpr std::size_t kMostLive = 14;
constexpr int kStepsPerSequence = 24;
constexpr int kIterations = 12;

struct Tensor {
  churn::Word* data;
  std::size_t words;
  churn::Word value;
  std::size_t stream;  // that it was used on last
  bool is_of_stream;   // allocated in the order of one
};

class Churn {
 public:
  explicit Churn(unsigned seed) : random_(seed) {
    for (cudaStream_t& stream : streams_) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    streams_.push_back(nullptr);
    CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    CHECK(cudaMallocHost(&wrong_, sizeof *wrong_));
    *wrong_ = 0;
    CHECK(cudaDeviceGetDefaultMemPool(&pool_, 0));
  }

  void sequence() {
    for (int i = 0; i < kStepsPerSequence; ++i) step(0, kMostLive);
    if (below(16) == 0) renew_stream();
    if (below(8) == 0) CHECK(cudaDeviceSynchronize());
    if (below(64) == 0) CHECK(cudaMemPoolTrimTo(pool_, below(2) * (std::size_t{16} << 20)));
    compare_figures();
  }

  // Tensors that stay, and the same random steps on others several times: what can be learned and then turns out wrong.
  void iterations() {
    for (std::size_t i = 0; i < kMostLive / 2; ++i) make(std::size_t{4} << 20, streams_.size() - 1, true);
    const std::size_t kept = live_.size();
    const auto seed = random_();
    for (int iteration = 0; iteration < kIterations; ++iteration) {
      random_.seed(seed);
      for (std::size_t i = 0; i < kept; ++i) look(live_[i]);
      for (int i = 0; i < kStepsPerSequence; ++i) step(kept, kMostLive / 2);
      while (live_.size() > kept) drop(live_.size() - 1);
      CHECK(cudaDeviceSynchronize());
    }
    random_.seed(seed + 1);
    while (!live_.empty()) drop(live_.size() - 1);
    compare_figures();
  }

  // The next tensor of the size and stream gets the memory.
  void use_after_free() {
    const Tensor freed = make(std::size_t{4} << 20, 0, true);
    drop(live_.size() - 1);
    make(std::size_t{4} << 20, 0, true);
    look(freed);
  }

  int finish() {
    for (Tensor& tensor : live_) look(tensor);
    while (!live_.empty()) drop(live_.size() - 1);
    CHECK(cudaDeviceSynchronize());
    std::printf("tensors %zu wrong %llu figures %s\n", made_, *wrong_, figures_agree_ ? "agree" : "disagree");
    return *wrong_ == 0 && figures_agree_ ? 0 : 3;
  }

 private:
  std::size_t below(std::size_t bound) { return random_() % bound; }

  // Makes, moves or drops one of the tensors from the first on, of which there are at most so many; or looks at any.
  void step(std::size_t first, std::size_t most) {
    const std::size_t made = live_.size() - first;
    switch (made == 0 ? 0 : made >= most ? 1 + below(3) : below(4)) {
      case 0:
        make();
        break;
      case 1:
        look(live_[below(live_.size())]);
        break;
      case 2:
        move(live_[first + below(made)]);
        break;
      default:
        drop(first + below(made));
    }
  }

  Tensor make() {
    static constexpr std::size_t kKiB[] = {1, 40, 700, 1024, 2048, 2048, 4096, 4096, 5000, 8192};
    return make(kKiB[below(std::size(kKiB))] << 10, below(streams_.size()), below(4) != 0);
  }

  Tensor make(std::size_t bytes, std::size_t stream, bool is_of_stream) {
    Tensor tensor{nullptr, bytes / sizeof(churn::Word), ++made_ << 32, stream, is_of_stream};
    if (tensor.is_of_stream) {
      CHECK(cudaMallocAsync(&tensor.data, bytes, streams_[tensor.stream]));
    } else {
      CHECK(cudaMalloc(&tensor.data, bytes));
    }
    churn_fill<<<1, 1, 0, streams_[tensor.stream]>>>(tensor.data, tensor.words, tensor.value);
    CHECK(cudaGetLastError());
    live_.push_back(tensor);
    return tensor;
  }

  void look(const Tensor& tensor) {
    churn_check<<<1, 1, 0, streams_[tensor.stream]>>>(tensor.data, tensor.words, tensor.value, wrong_);
    CHECK(cudaGetLastError());
  }

  void move(Tensor& tensor) {
    const std::size_t next = below(streams_.size());
    CHECK(cudaEventRecord(event_, streams_[tensor.stream]));
    CHECK(cudaStreamWaitEvent(streams_[next], event_, 0));
    tensor.stream = next;
    look(tensor);
  }

  void drop(std::size_t index) {
    const Tensor tensor = live_[index];
    if (below(2) == 0) look(tensor);
    if (!tensor.is_of_stream || below(4) == 0) {
      CHECK(cudaFree(tensor.data));  // with work on it still to come: a free waits for it
    } else {
      CHECK(cudaFreeAsync(tensor.data, streams_[tensor.stream]));
    }
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // A stream ends with work on it; what lives there goes on elsewhere.
  void renew_stream() {
    const std::size_t gone = below(streams_.size() - 1);
    CHECK(cudaEventRecord(event_, streams_[gone]));
    CHECK(cudaStreamWaitEvent(nullptr, event_, 0));
    for (Tensor& tensor : live_) {
      if (tensor.stream == gone) tensor.stream = streams_.size() - 1;
    }
    CHECK(cudaStreamDestroy(streams_[gone]));
    CHECK(cudaStreamCreateWithFlags(&streams_[gone], cudaStreamNonBlocking));
  }

  void compare_figures() {
    unsigned long long used = 0, reserved = 0, used_high = 0;
    std::size_t free_bytes = 0, total_bytes = 0;
    CHECK(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used));
    CHECK(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &used_high));
    CHECK(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    figures_agree_ = figures_agree_ && used <= reserved && used <= used_high && free_bytes + used <= total_bytes;
  }

  std::mt19937_64 random_;
  std::vector<cudaStream_t> streams_{2};
  cudaEvent_t event_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  churn::Word* wrong_ = nullptr;
  std::vector<Tensor> live_;
  std::size_t made_ = 0;
  bool figures_agree_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: tensor_churn SEED SEQUENCES [iterations|use-after-free]\n");
    return 2;
  }
  Churn churn(static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)));
  const std::string how = argc > 3 ? argv[3] : "";
  for (long sequence = std::atol(argv[2]); sequence > 0; --sequence)
    how == "iterations" ? churn.iterations() : churn.sequence();
  if (how == "use-after-free") churn.use_after_free();
  return churn.finish();
}
