// A training loop whose shape comes from the command line: how many layers, how large their tensors, how long their
// kernels run on the simulated GPU, what happens between iterations. It prints a checksum of all weights, and with
// --times how long each iteration took and how much memory the tensors take.
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/guests/layers.hpp"

// The last parameter is for the simulated GPU: how long the kernel runs.
extern "C" {
__global__ void layers_forward(float* out, const float* in, const float* weight, std::size_t count, std::size_t) {
  const std::size_t i = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) * layers::kStride;
  if (i < count) layers::forward(out, in, weight, i);
}
__global__ void layers_backward(float* gradient, const float* activation, const float* weight, float* weight_gradient,
                                std::size_t count, std::size_t) {
  const std::size_t i = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) * layers::kStride;
  if (i < count) layers::backward(gradient, activation, weight, weight_gradient, i);
}
__global__ void layers_update(float* weight, const float* weight_gradient, std::size_t count, std::size_t) {
  const std::size_t i = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) * layers::kStride;
  if (i < count) layers::update(weight, weight_gradient, i);
}
}

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "layers: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

struct Options {
  int layers = 8;
  int mib = 8;  // of each tensor
  int iterations = 6;
  int us = 400;            // of each kernel
  int warm_up = 0;         // forward passes before the first iteration
  int models = 1;          // which take turns
  int turn = 1;            // iterations until the next model's turn
  int accumulate = 1;      // forward and backward passes an update
  int evaluate_every = 0;  // iterations; 0: never
  int evaluate_for = 1;    // forward passes
  int log_every = 0;
  int stop_at = 0;         // the iteration in which the program exits in the middle, without waiting
  int fork_every = 0;      // iterations in whose middle the program forks, as loaders of data do
  bool allocates = false;  // activations anew in every iteration
  bool times = false;
  bool shuffles = false;  // another order of layers in every iteration
  bool grows = false;     // activations, with every iteration
  bool moves = false;     // to the root folder, after the first iteration
};

Options parse(int argc, char** argv) {
  Options options;
  const struct {
    const char* name;
    int* value;
  } numbers[] = {{"--layers", &options.layers},
                 {"--mib", &options.mib},
                 {"--iterations", &options.iterations},
                 {"--us", &options.us},
                 {"--warm-up", &options.warm_up},
                 {"--models", &options.models},
                 {"--turn", &options.turn},
                 {"--accumulate", &options.accumulate},
                 {"--evaluate-every", &options.evaluate_every},
                 {"--evaluate-for", &options.evaluate_for},
                 {"--log-every", &options.log_every},
                 {"--stop-at", &options.stop_at},
                 {"--fork-every", &options.fork_every}};
  const struct {
    const char* name;
    bool* value;
  } switches[] = {{"--allocates", &options.allocates},
                  {"--times", &options.times},
                  {"--shuffles", &options.shuffles},
                  {"--grows", &options.grows},
                  {"--moves", &options.moves}};
  for (int i = 1; i < argc; ++i) {
    bool is_known = false;
    for (const auto& number : numbers) {
      if (std::strcmp(argv[i], number.name) != 0 || i + 1 == argc) continue;
      *number.value = std::atoi(argv[++i]);
      is_known = true;
      break;
    }
    for (const auto& toggle : switches) {
      if (is_known || std::strcmp(argv[i], toggle.name) != 0) continue;
      *toggle.value = true;
      is_known = true;
    }
    if (!is_known) {
      std::fprintf(stderr, "layers: unknown option or missing value: %s\n", argv[i]);
      std::exit(2);
    }
  }
  return options;
}

class Model {
 public:
  explicit Model(const Options& options)
      : options_(options),
        count_((std::size_t{1} << 20) / sizeof(float) * static_cast<std::size_t>(options.mib)),
        host_(count_) {
    for (int layer = 0; layer < options_.layers; ++layer) {
      weights_.push_back(tensor());
      weight_gradients_.push_back(tensor());
      for (std::size_t i = 0; i < count_; i += layers::kStride) host_[i] = 1.0F / static_cast<float>(layer + 2);
      CHECK(cudaMemcpy(weights_.back(), host_.data(), bytes(), cudaMemcpyHostToDevice));
    }
    gradient_ = tensor();
    activations_.assign(static_cast<std::size_t>(options_.layers) + 1, nullptr);
    if (!options_.allocates) {
      for (float*& activation : activations_) activation = tensor();
    }
    order_.resize(static_cast<std::size_t>(options_.layers));
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
  }

  void forward() {
    for (std::size_t layer = 0; layer < weights_.size(); ++layer) {
      if (options_.allocates) activations_[layer + 1] = activation();
      layers_forward<<<grid(), kThreads>>>(activations_[layer + 1], activations_[layer], weights_[order_[layer]],
                                           count_, ns());
      CHECK(cudaGetLastError());
    }
  }

  void iterate(int iteration) {
    iteration_ = iteration;
    if (options_.shuffles) shuffle(iteration);
    for (int pass = 0; pass < options_.accumulate; ++pass) {
      if (options_.allocates) activations_[0] = activation();
      CHECK(cudaMemsetAsync(activations_[0], 0, bytes()));
      CHECK(cudaMemsetAsync(gradient_, 1, bytes()));
      forward();
      if (iteration == options_.stop_at) std::exit(0);
      if (options_.fork_every > 0 && iteration % options_.fork_every == 0) fork_child();
      for (std::size_t layer = weights_.size(); layer-- > 0;) {
        layers_backward<<<grid(), kThreads>>>(gradient_, activations_[layer + 1], weights_[order_[layer]],
                                              weight_gradients_[order_[layer]], count_, ns());
        CHECK(cudaGetLastError());
        release(activations_[layer + 1]);
      }
      release(activations_[0]);
    }
    for (std::size_t layer = 0; layer < weights_.size(); ++layer) {
      layers_update<<<grid(), kThreads>>>(weights_[layer], weight_gradients_[layer], count_, ns());
      CHECK(cudaGetLastError());
    }
  }

  // The forward pass alone, on what the iteration before has left.
  void evaluate() {
    if (options_.allocates) activations_[0] = activation();
    forward();
    for (float*& activation : activations_) release(activation);
  }

  float log() const {
    float value = 0;
    CHECK(cudaMemcpy(&value, weights_[0], sizeof value, cudaMemcpyDeviceToHost));
    return value;
  }

  std::size_t footprint_bytes() const {
    return (weights_.size() + weight_gradients_.size() + activations_.size() + 1) * bytes();
  }

  std::uint64_t checksum() {
    std::uint64_t hash = 14695981039346656037U;
    for (const float* weight : weights_) {
      CHECK(cudaMemcpy(host_.data(), weight, bytes(), cudaMemcpyDeviceToHost));
      for (std::size_t i = 0; i < count_; i += layers::kStride) {
        std::uint32_t word;
        std::memcpy(&word, &host_[i], sizeof word);
        hash = (hash ^ word) * 1099511628211U;
      }
    }
    return hash;
  }

 private:
  static constexpr unsigned kThreads = 256;

  std::size_t bytes() const { return count_ * sizeof(float); }
  std::size_t ns() const { return static_cast<std::size_t>(options_.us) * 1000; }
  unsigned grid() const { return static_cast<unsigned>((count_ / layers::kStride + kThreads - 1) / kThreads); }
  float* tensor() const {
    float* data = nullptr;
    CHECK(cudaMalloc(&data, bytes()));
    return data;
  }
  float* activation() const {
    float* data = nullptr;
    const std::size_t mib = options_.grows ? static_cast<std::size_t>(iteration_) : 0;
    CHECK(cudaMalloc(&data, bytes() + (mib << 20)));
    return data;
  }
  void release(float*& activation) const {
    if (!options_.allocates || activation == nullptr) return;
    CHECK(cudaFree(activation));
    activation = nullptr;
  }
  // The child finds that CUDA does not work in it, and ends as any program does.
  void fork_child() const {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      float* data = nullptr;
      std::exit(cudaMalloc(&data, bytes()) == cudaSuccess ? 4 : 3);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) status = -1;
    std::printf("child ended with %d\n", WEXITSTATUS(status));
  }
  void shuffle(int iteration) {
    std::uint64_t state = static_cast<std::uint64_t>(iteration);
    for (std::size_t i = order_.size(); i > 1; --i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      std::swap(order_[i - 1], order_[(state >> 33) % i]);
    }
  }

  Options options_;
  std::size_t count_;
  std::vector<float> host_;
  std::vector<float*> weights_, weight_gradients_, activations_;
  float* gradient_ = nullptr;
  std::vector<std::size_t> order_;
  int iteration_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::vector<Model> models;
  for (int i = 0; i < options.models; ++i) models.emplace_back(options);
  std::vector<cudaEvent_t> ends(static_cast<std::size_t>(options.iterations) + 1);
  for (cudaEvent_t& end : ends) CHECK(cudaEventCreate(&end));
  for (int pass = 0; pass < options.warm_up; ++pass) models[0].evaluate();
  CHECK(cudaEventRecord(ends[0]));
  for (int iteration = 1; iteration <= options.iterations; ++iteration) {
    Model& model = models[static_cast<std::size_t>((iteration - 1) / options.turn % options.models)];
    model.iterate(iteration);
    if (options.moves && chdir("/") != 0) return 1;
    CHECK(cudaEventRecord(ends[static_cast<std::size_t>(iteration)]));
    if (options.log_every > 0 && iteration % options.log_every == 0) std::printf("%g\n", model.log());
    if (options.evaluate_every > 0 && iteration % options.evaluate_every == 0) {
      for (int pass = 0; pass < options.evaluate_for; ++pass) model.evaluate();
    }
  }
  CHECK(cudaDeviceSynchronize());
  for (int iteration = 1; options.times && iteration <= options.iterations; ++iteration) {
    float ms = 0;
    const auto end = static_cast<std::size_t>(iteration);
    CHECK(cudaEventElapsedTime(&ms, ends[end - 1], ends[end]));
    std::printf("iteration %d ms %.3f\n", iteration, ms);
  }
  if (options.times) {
    std::size_t bytes = 0;
    for (const Model& model : models) bytes += model.footprint_bytes();
    std::printf("footprint %zu\n", bytes);
  }
  for (Model& model : models) std::printf("weights %016llx\n", static_cast<unsigned long long>(model.checksum()));
}
