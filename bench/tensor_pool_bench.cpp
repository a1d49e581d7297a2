// The pool of tensors on the sizes and the order of a training iteration: ns per allocation and its free, beside
// malloc and (where it is installed) jemalloc on the same sequence, untouched; and fragmentation, as the most that was
// reserved over the most that was live. No driver call is made in the steady state: those that are made are counted.
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "uvm/tensor_pool.hpp"

namespace {

using namespace hmshim;

// ---- what a training iteration allocates and frees

struct Step {
  std::uint32_t tensor;
  std::uint64_t bytes;  // 0: free it
};

// Forward keeps activations and drops workspace at once; backward makes gradients in reverse and drops what it used;
// weights live for ever. `variation` is the share by which sizes differ from one iteration to the next, as with
// sequences of several lengths.
class Training {
 public:
  Training(std::uint32_t layers, double variation) : layers_(layers), variation_(variation) {}

  [[nodiscard]] std::vector<Step> iteration() {
    std::vector<Step> steps;
    const double scale = 1 + variation_ * (std::uniform_real_distribution(-1.0, 1.0)(random_));
    const auto size = [&](std::uint32_t layer, std::uint64_t kib) {
      return static_cast<std::uint64_t>(static_cast<double>(kib << 10) * scale) + (layer % 3) * 4096;
    };
    const auto make = [&](std::uint32_t tensor, std::uint64_t bytes) { steps.push_back({tensor, bytes}); };
    const auto drop = [&](std::uint32_t tensor) { steps.push_back({tensor, 0}); };
    for (std::uint32_t layer = 0; layer < layers_; ++layer) {
      const std::uint32_t base = layer * kPerLayer;
      make(base, size(layer, 16 << 10));      // attention input
      make(base + 1, size(layer, 48 << 10));  // q, k, v
      make(base + 2, size(layer, 64));        // statistics of a norm
      make(base + 3, size(layer, 32 << 10));  // workspace
      drop(base + 3);
      make(base + 4, size(layer, 64 << 10));  // hidden
      make(base + 5, size(layer, 4));         // a scalar or so
      make(base + 6, size(layer, 1500));
    }
    for (std::uint32_t layer = layers_; layer-- > 0;) {
      const std::uint32_t base = layer * kPerLayer;
      make(base + 7, size(layer, 64 << 10));  // gradient of hidden
      drop(base + 4);
      make(base + 8, size(layer, 48 << 10));
      drop(base + 7);
      drop(base + 1);
      make(base + 9, size(layer, 24 << 10));  // gradient of a weight, to the end
      drop(base + 8);
      for (const std::uint32_t each : {0u, 2u, 5u, 6u}) drop(base + each);
    }
    for (std::uint32_t layer = 0; layer < layers_; ++layer) drop(layer * kPerLayer + 9);
    return steps;
  }
  [[nodiscard]] std::size_t tensors() const { return std::size_t{layers_} * kPerLayer; }

 private:
  static constexpr std::uint32_t kPerLayer = 10;
  std::mt19937_64 random_{1};
  std::uint32_t layers_;
  double variation_;
};

// ---- a driver that only hands out addresses

std::uint64_t next_address = 0x7f0000000000;
std::uint64_t driver_calls = 0;

CUresult done() { return ++driver_calls, CUDA_SUCCESS; }
CUresult hand_out(CUdeviceptr* out, std::size_t bytes) {
  *out = next_address;
  next_address += policy::round_up_to_block(bytes);
  return done();
}

uvm::DriverApi driver() {
  uvm::DriverApi api;
  api.cuMemAllocManaged = [](CUdeviceptr* out, std::size_t bytes, unsigned) { return hand_out(out, bytes); };
  api.cuMemAlloc_v2 = hand_out;
  api.cuMemFree_v2 = [](CUdeviceptr) { return done(); };
  api.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return done();
  };
  api.cuEventCreate = [](CUevent*, unsigned) { return done(); };
  api.cuEventDestroy_v2 = [](CUevent) { return done(); };
  api.cuEventRecord = [](CUevent, CUstream) { return done(); };
  api.cuEventQuery = [](CUevent) { return done(); };
  api.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) { return done(); };
  api.cuCtxSynchronize = [] { return done(); };
  return api;
}

class Silent final : public uvm::TensorObserver {
 public:
  void allocated(const uvm::Allocation&) noexcept override {}
  void retired(const uvm::Allocation&) noexcept override {}
  void revived(const uvm::Allocation&) noexcept override {}
  void reshaped(std::span<const policy::ExtentId>, std::span<const uvm::Allocation>) noexcept override {}
  void freed(const uvm::Allocation&) noexcept override {}
  [[nodiscard]] bool is_resident(policy::ExtentId) const noexcept override { return true; }
  [[nodiscard]] bool is_capturing() const noexcept override { return false; }
};

struct World {
  static constexpr std::uint64_t kDeviceBytes = std::uint64_t{80} << 30;
  uvm::DriverApi api = driver();
  uvm::AllocationTable table;
  uvm::DeviceBudget budget{std::vector<uvm::DeviceShare>{{kDeviceBytes, {}}}, {}, uvm::HostMemory()};
  uvm::BackingStore backing{api, table, budget};
  Silent observer;
  uvm::TensorPool pool{api, table, backing, observer, {0, 1, kDeviceBytes, 1 << 20, false}};
};

void tensor_pool(benchmark::State& state) {
  World world;
  Training training(static_cast<std::uint32_t>(state.range(0)), static_cast<double>(state.range(1)) / 100);
  std::vector<std::uint64_t> addresses(training.tensors());
  std::uint64_t live_bytes = 0, most_live_bytes = 0;
  std::vector<std::uint64_t> sizes(training.tensors());
  const auto run = [&](const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      if (step.bytes == 0) {
        benchmark::DoNotOptimize(world.pool.free(addresses[step.tensor], CU_STREAM_LEGACY).code());
      } else {
        addresses[step.tensor] = world.pool.allocate(step.bytes, CU_STREAM_LEGACY)->address;
      }
    }
  };
  const auto measure_live = [&](const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      live_bytes += step.bytes;
      if (step.bytes == 0) live_bytes -= sizes[step.tensor];
      sizes[step.tensor] = step.bytes;
      most_live_bytes = std::max(most_live_bytes, live_bytes);
    }
  };
  for (int warm_up = 0; warm_up < 20; ++warm_up) {
    const std::vector<Step> steps = training.iteration();
    measure_live(steps);
    run(steps);
  }
  std::int64_t pairs = 0;
  const std::uint64_t calls_before = driver_calls;
  for (auto _ : state) {
    state.PauseTiming();
    const std::vector<Step> steps = training.iteration();
    measure_live(steps);
    state.ResumeTiming();
    run(steps);
    pairs += static_cast<std::int64_t>(steps.size() / 2);
  }
  state.SetItemsProcessed(pairs);
  state.counters["driver_calls"] = static_cast<double>(driver_calls - calls_before);
  state.counters["reserved_over_live"] =
      static_cast<double>(world.pool.bytes().reserved_high) / static_cast<double>(most_live_bytes);
}

template <class Allocate, class Free>
void allocator(benchmark::State& state, Allocate allocate, Free free_memory) {
  Training training(static_cast<std::uint32_t>(state.range(0)), static_cast<double>(state.range(1)) / 100);
  std::vector<void*> addresses(training.tensors());
  std::int64_t pairs = 0;
  for (auto _ : state) {
    state.PauseTiming();
    const std::vector<Step> steps = training.iteration();
    state.ResumeTiming();
    for (const Step& step : steps) {
      if (step.bytes == 0) {
        free_memory(addresses[step.tensor]);
      } else {
        addresses[step.tensor] = allocate(step.bytes);
        benchmark::DoNotOptimize(addresses[step.tensor]);
      }
    }
    pairs += static_cast<std::int64_t>(steps.size() / 2);
  }
  state.SetItemsProcessed(pairs);
}

void glibc_malloc(benchmark::State& state) {
  allocator(
      state, [](std::size_t bytes) { return std::malloc(bytes); }, [](void* memory) { std::free(memory); });
}

void jemalloc(benchmark::State& state) {
  void* library = dlopen("libjemalloc.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return state.SkipWithError("jemalloc is not installed");
  const auto mallocx = reinterpret_cast<void* (*)(std::size_t, int)>(dlsym(library, "mallocx"));
  const auto dallocx = reinterpret_cast<void (*)(void*, int)>(dlsym(library, "dallocx"));
  if (mallocx == nullptr || dallocx == nullptr) return state.SkipWithError("jemalloc has no mallocx");
  allocator(
      state, [=](std::size_t bytes) { return mallocx(bytes, 0); }, [=](void* memory) { dallocx(memory, 0); });
}

// Layers, percent of variation.
BENCHMARK(tensor_pool)->Args({48, 0})->Args({48, 20});
BENCHMARK(glibc_malloc)->Args({48, 0});
BENCHMARK(jemalloc)->Args({48, 0});

}  // namespace

BENCHMARK_MAIN();
