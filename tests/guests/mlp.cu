// An ordinary CUDA training program: a multilayer perceptron, Adam, generated data. It knows nothing of hmshim.
//
// Every tensor is a cudaMalloc of its own and nothing is atomic, so two runs that compute on the same numbers print the
// same losses and the same hash of all weights, whatever memory those numbers travelled through.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/guests/mlp_kernels.hpp"

namespace {

constexpr unsigned kThreadsPerBlock = 256;

using mlp::AdamStep;
using mlp::Shape;

}  // namespace

// extern "C" gives the kernels plain names, under which a simulated GPU can be given their host bodies.
extern "C" {

__global__ void mlp_linear_forward(float* out, const float* in, const float* weight, const float* bias, Shape shape) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column < shape.outputs) {
    mlp::linear_forward<1>(out, in, weight, bias, shape, static_cast<int>(blockIdx.y), column);
  }
}

__global__ void mlp_linear_backward_input(float* in_grad, const float* out_grad, const float* weight, Shape shape) {
  const int input = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (input < shape.inputs) {
    mlp::linear_backward_input<1>(in_grad, out_grad, weight, shape, static_cast<int>(blockIdx.y), input);
  }
}

__global__ void mlp_linear_backward_weight(float* weight_grad, const float* in, const float* out_grad, Shape shape) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column < shape.outputs) {
    mlp::linear_backward_weight<1>(weight_grad, in, out_grad, shape, static_cast<int>(blockIdx.y), column);
  }
}

__global__ void mlp_linear_backward_bias(float* bias_grad, const float* out_grad, Shape shape) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column < shape.outputs) mlp::linear_backward_bias<1>(bias_grad, out_grad, shape, column);
}

__global__ void mlp_relu_forward(float* value, std::size_t count) {
  const std::size_t index = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index < count) mlp::relu_forward<1>(value, index);
}

__global__ void mlp_relu_backward(float* grad, const float* activation, std::size_t count) {
  const std::size_t index = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index < count) mlp::relu_backward<1>(grad, activation, index);
}

__global__ void mlp_mse_loss(float* loss, float* out_grad, const float* out, const float* target, Shape shape) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < shape.batch) mlp::mse_loss(loss, out_grad, out, target, shape, row);
}

__global__ void mlp_adam(float* value, const float* grad, float* mean, float* variance, AdamStep step,
                         std::size_t count) {
  const std::size_t index = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index < count) mlp::adam<1>(value, grad, mean, variance, step, index);
}

}  // extern "C"

namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// A tensor whose memory could not be given back: the run failed even if its numbers are right.
bool leaked = false;

class Tensor {
 public:
  explicit Tensor(std::size_t count) : count_(count) {
    const cudaError_t error = cudaMalloc(&data_, bytes());
    if (error == cudaErrorMemoryAllocation) {
      std::size_t free_bytes = 0;
      std::size_t total_bytes = 0;
      check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
      throw std::runtime_error("out of memory: asked for " + std::to_string(bytes()) + " bytes, " +
                               std::to_string(free_bytes) + " of " + std::to_string(total_bytes) + " are free");
    }
    check(error, "cudaMalloc");
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  Tensor(Tensor&& other) noexcept : data_(other.data_), count_(other.count_) { other.data_ = nullptr; }
  ~Tensor() {
    const cudaError_t error = data_ == nullptr ? cudaSuccess : cudaFree(data_);
    if (error != cudaSuccess) {
      std::fprintf(stderr, "mlp: cudaFree: %s\n", cudaGetErrorString(error));
      leaked = true;
    }
  }

  float* data() const { return data_; }
  std::size_t count() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(float); }

  void upload(const std::vector<float>& host) {
    check(cudaMemcpy(data_, host.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  }
  void download(std::vector<float>& host) const {
    host.resize(count_);
    check(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
  }
  void clear() { check(cudaMemset(data_, 0, bytes()), "cudaMemset"); }

 private:
  float* data_ = nullptr;
  std::size_t count_;
};

/// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// Uniform in [-bound, bound).
  float uniform(float bound) {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    return bound * (static_cast<float>(z >> 40) * 0x1p-23F - 1.0F);
  }
  std::vector<float> uniform(std::size_t count, float bound) {
    std::vector<float> values(count);
    for (float& value : values) value = uniform(bound);
    return values;
  }

 private:
  std::uint64_t state_;
};

/// A parameter and what Adam keeps for it.
struct Parameter {
  Tensor value;
  Tensor grad;
  Tensor mean;
  Tensor variance;

  Parameter(std::size_t count, Random& random, float bound) : value(count), grad(count), mean(count), variance(count) {
    value.upload(random.uniform(count, bound));
    mean.clear();
    variance.clear();
  }
  std::size_t bytes() const { return 4 * value.bytes(); }
};

struct Layer {
  Parameter weight;
  Parameter bias;
  Tensor activation;
  Tensor activation_grad;

  // Weights as He et al. draw them for ReLU, so that neither signal nor gradient fades with depth.
  Layer(Shape shape, Random& random)
      : weight(mlp::at(shape.inputs, shape.outputs, 0), random, std::sqrt(6.0F / static_cast<float>(shape.inputs))),
        bias(static_cast<std::size_t>(shape.outputs), random, 0.0F),
        activation(mlp::at(shape.batch, shape.outputs, 0)),
        activation_grad(mlp::at(shape.batch, shape.outputs, 0)) {}
  std::size_t bytes() const { return weight.bytes() + bias.bytes() + activation.bytes() + activation_grad.bytes(); }
};

unsigned blocks(std::size_t count) { return static_cast<unsigned>((count + kThreadsPerBlock - 1) / kThreadsPerBlock); }
unsigned blocks(int count) { return blocks(static_cast<std::size_t>(count)); }

void launched(const char* kernel) { check(cudaGetLastError(), kernel); }

class Mlp {
 public:
  Mlp(Shape shape, int layers)
      : shape_(shape),
        random_(1),
        input_(mlp::at(shape.batch, shape.inputs, 0)),
        target_(mlp::at(shape.batch, shape.outputs, 0)),
        sample_loss_(static_cast<std::size_t>(shape.batch)) {
    host_input_ = random_.uniform(input_.count(), 1.0F);
    host_target_ = random_.uniform(target_.count(), 1.0F);
    layers_.reserve(static_cast<std::size_t>(layers));
    for (int layer = 0; layer < layers; ++layer) layers_.emplace_back(shape, random_);
  }

  /// One training step; returns the loss before it.
  double train(int iteration) {
    input_.upload(host_input_);
    target_.upload(host_target_);
    forward();
    mlp_mse_loss<<<blocks(shape_.batch), kThreadsPerBlock>>>(sample_loss_.data(), layers_.back().activation_grad.data(),
                                                             layers_.back().activation.data(), target_.data(), shape_);
    launched("mlp_mse_loss");
    backward();
    for (Layer& layer : layers_) {
      update(layer.weight, iteration);
      update(layer.bias, iteration);
    }
    sample_loss_.download(staging_);
    double loss = 0.0;
    for (const float sample : staging_) loss += static_cast<double>(sample);
    return loss / shape_.batch;
  }

  /// FNV-1a over the bits of every weight and bias, in order.
  std::uint64_t hash() {
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (const Layer& layer : layers_) {
      for (const Tensor* tensor : {&layer.weight.value, &layer.bias.value}) {
        tensor->download(staging_);
        for (const float value : staging_) {
          std::uint32_t bits;
          std::memcpy(&bits, &value, sizeof(bits));
          hash = (hash ^ bits) * 0x100000001b3ULL;
        }
      }
    }
    return hash;
  }

  std::size_t bytes() const {
    std::size_t total = input_.bytes() + target_.bytes() + sample_loss_.bytes();
    for (const Layer& layer : layers_) total += layer.bytes();
    return total;
  }

 private:
  const Tensor& input_of(std::size_t layer) const { return layer == 0 ? input_ : layers_[layer - 1].activation; }

  void forward() {
    const dim3 grid(blocks(shape_.outputs), static_cast<unsigned>(shape_.batch));
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      Layer& layer = layers_[i];
      mlp_linear_forward<<<grid, kThreadsPerBlock>>>(layer.activation.data(), input_of(i).data(),
                                                     layer.weight.value.data(), layer.bias.value.data(), shape_);
      launched("mlp_linear_forward");
      if (i + 1 < layers_.size()) {
        mlp_relu_forward<<<blocks(layer.activation.count()), kThreadsPerBlock>>>(layer.activation.data(),
                                                                                 layer.activation.count());
        launched("mlp_relu_forward");
      }
    }
  }

  void backward() {
    for (std::size_t i = layers_.size(); i-- > 0;) {
      Layer& layer = layers_[i];
      const float* grad = layer.activation_grad.data();
      const dim3 weight_grid(blocks(shape_.outputs), static_cast<unsigned>(shape_.inputs));
      mlp_linear_backward_weight<<<weight_grid, kThreadsPerBlock>>>(layer.weight.grad.data(), input_of(i).data(), grad,
                                                                    shape_);
      launched("mlp_linear_backward_weight");
      mlp_linear_backward_bias<<<blocks(shape_.outputs), kThreadsPerBlock>>>(layer.bias.grad.data(), grad, shape_);
      launched("mlp_linear_backward_bias");
      if (i == 0) return;
      Layer& below = layers_[i - 1];
      const dim3 input_grid(blocks(shape_.inputs), static_cast<unsigned>(shape_.batch));
      mlp_linear_backward_input<<<input_grid, kThreadsPerBlock>>>(below.activation_grad.data(), grad,
                                                                  layer.weight.value.data(), shape_);
      launched("mlp_linear_backward_input");
      mlp_relu_backward<<<blocks(below.activation.count()), kThreadsPerBlock>>>(
          below.activation_grad.data(), below.activation.data(), below.activation.count());
      launched("mlp_relu_backward");
    }
  }

  void update(Parameter& parameter, int iteration) {
    const double beta1 = 0.9;
    const double beta2 = 0.999;
    const double correction = std::sqrt(1.0 - std::pow(beta2, iteration)) / (1.0 - std::pow(beta1, iteration));
    const AdamStep step{static_cast<float>(1e-3 * correction), static_cast<float>(beta1), static_cast<float>(beta2),
                        1e-8F};
    const std::size_t count = parameter.value.count();
    mlp_adam<<<blocks(count), kThreadsPerBlock>>>(parameter.value.data(), parameter.grad.data(), parameter.mean.data(),
                                                  parameter.variance.data(), step, count);
    launched("mlp_adam");
  }

  Shape shape_;
  Random random_;
  Tensor input_;
  Tensor target_;
  Tensor sample_loss_;
  std::vector<Layer> layers_;
  std::vector<float> host_input_;
  std::vector<float> host_target_;
  std::vector<float> staging_;
};

constexpr const char* kUsage =
    "usage: mlp [--layers N | --footprint BYTES] [--width N] [--batch N] [--iterations N]\n"
    "  --layers N         fully connected layers (default 8)\n"
    "  --footprint BYTES  as many layers as it takes to need at least BYTES of device memory\n"
    "  --width N          inputs and outputs of each layer, a multiple of 64 (default 1024)\n"
    "  --batch N          samples (default 4)\n"
    "  --iterations N     training steps (default 8)\n"
    "Prints the loss of each step and a hash of all weights. Out of memory and every other CUDA error: exit status "
    "1.\n";

struct Options {
  std::size_t layers = 8;
  std::size_t footprint_bytes = 0;
  std::size_t width = 1024;
  std::size_t batch = 4;
  std::size_t iterations = 8;
};

/// Fills options, or says what is wrong with the arguments and returns false.
bool parse(int argc, char** argv, Options& options) {
  struct Option {
    const char* name;
    std::size_t* value;
    std::size_t limit;
  };
  const Option known[] = {{"--layers", &options.layers, 65536},
                          {"--footprint", &options.footprint_bytes, std::size_t{1} << 46},
                          {"--width", &options.width, 32768},
                          {"--batch", &options.batch, 65535},
                          {"--iterations", &options.iterations, 1000000}};
  for (int i = 1; i < argc; i += 2) {
    const Option* option = nullptr;
    for (const Option& candidate : known) {
      if (std::strcmp(argv[i], candidate.name) == 0) option = &candidate;
    }
    if (option == nullptr) {
      std::fprintf(stderr, "mlp: unknown option '%s'\n%s", argv[i], kUsage);
      return false;
    }
    const char* text = i + 1 < argc ? argv[i + 1] : "";
    char* end = nullptr;
    const unsigned long long value = std::strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || value == 0 || value > option->limit) {
      std::fprintf(stderr, "mlp: %s '%s': expected a whole number from 1 to %zu\n", argv[i], text, option->limit);
      return false;
    }
    *option->value = value;
  }
  if (options.width % 64 != 0) {
    std::fprintf(stderr, "mlp: --width %zu: expected a multiple of 64\n", options.width);
    return false;
  }
  if (options.footprint_bytes > 0) {
    const std::size_t parameters = options.width * options.width + options.width;
    const std::size_t layer_bytes = (4 * parameters + 2 * options.batch * options.width) * sizeof(float);
    options.layers = (options.footprint_bytes + layer_bytes - 1) / layer_bytes;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) return 2;
  try {
    const int width = static_cast<int>(options.width);
    Mlp model(Shape{static_cast<int>(options.batch), width, width}, static_cast<int>(options.layers));
    std::printf("mlp: %zu x %d x %d, batch %zu: %zu bytes of device memory\n", options.layers, width, width,
                options.batch, model.bytes());
    for (int iteration = 1; iteration <= static_cast<int>(options.iterations); ++iteration) {
      std::printf("iteration %d loss %.9g\n", iteration, model.train(iteration));
    }
    std::printf("weights %016llx\n", static_cast<unsigned long long>(model.hash()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mlp: %s\n", error.what());
    return 1;
  }
  return leaked ? 1 : 0;
}
