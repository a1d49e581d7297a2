// What the library adds to a launch and to an alloc+free pair.
//
// usage: launch_path LIBRARY [ROUNDS]
//
// Two copies of this program run on tests/null_driver, one with LIBRARY preloaded and one without; they are measured in
// turn, batch by batch, so that a machine whose speed drifts shifts both. Printed: the median over the rounds of (with
// - without), and the spread.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int kAllocations = 1000;
constexpr std::size_t kBatch = 20000;
constexpr std::size_t kLaunchesPerSync = 1000;
constexpr std::size_t kArgumentSets = 4096;

// CUDA's call shapes, measured one batch at a time; each returns nanoseconds per operation.
class Worker {
 public:
  Worker() {
    cuInit(0);
    cuModuleGetFunction(&pointers_, nullptr, "pointers");
    cuModuleGetFunction(&block_, nullptr, "block");
    allocations_.resize(kAllocations);
    for (CUdeviceptr& allocation : allocations_) cuMemAlloc(&allocation, std::size_t{2} << 20);
    std::mt19937_64 random(1);
    for (auto& set : argument_sets_) {
      for (CUdeviceptr& argument : set) argument = allocations_[random() % allocations_.size()] + random() % 4096;
    }
  }

  double run(const std::string& name) {
    if (name == "indirect_call") return time([](std::size_t) { plain_function(); });
    if (name == "launch_4_pointers") return time_launches([this](std::size_t i) { launch_pointers(i); });
    if (name == "launch_4_pointers_and_digest") {
      return time([this](std::size_t i) {
        launch_pointers(i);
        if (i % kLaunchesPerSync == kLaunchesPerSync - 1) cuStreamSynchronize(nullptr);
      });
    }
    if (name == "launch_4k_struct_0_pointers") return struct_launch(0);
    if (name == "launch_4k_struct_16_pointers") return struct_launch(16);
    if (name == "alloc_free_2MiB") {
      return time([](std::size_t) {
        CUdeviceptr address = 0;
        cuMemAlloc(&address, std::size_t{2} << 20);
        cuMemFree(address);
      });
    }
    if (name == "malloc_free_64B") {
      return time([](std::size_t) {
        void* volatile pointer = std::malloc(64);
        std::free(pointer);
      });
    }
    std::fprintf(stderr, "launch_path: no case named %s\n", name.c_str());
    std::exit(2);
  }

 private:
  static void nothing() {}
  static inline void (*volatile plain_function)() = nothing;

  void launch_pointers(std::size_t i) {
    auto& set = argument_sets_[i % kArgumentSets];
    void* arguments[] = {&set[0], &set[1], &set[2], &set[3]};
    // Grids differ, so that the sequence has the period of a real iteration.
    const auto grid = static_cast<unsigned>(i % kArgumentSets) + 1;
    cuLaunchKernel(pointers_, grid, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr);
  }

  // Sizes and strides with `managed` pointers spread among them.
  double struct_launch(std::size_t managed) {
    std::vector<std::uint64_t> words(512);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = i * 97 + 1;
    for (std::size_t i = 0; i < managed; ++i) words[i * 31 + 3] = allocations_[i * 61];
    void* arguments[] = {words.data()};
    return time_launches([&](std::size_t i) {
      const auto grid = static_cast<unsigned>(i % kArgumentSets) + 1;
      cuLaunchKernel(block_, grid, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr);
    });
  }

  // The synchronisations in between, where the guest waits for the device anyway and the library digests what it has
  // queued, are not timed.
  template <class Launch>
  static double time_launches(Launch launch) {
    std::chrono::duration<double, std::nano> elapsed{};
    for (std::size_t first = 0; first < kBatch; first += kLaunchesPerSync) {
      const auto begin = std::chrono::steady_clock::now();
      for (std::size_t i = first; i < first + kLaunchesPerSync; ++i) launch(i);
      elapsed += std::chrono::steady_clock::now() - begin;
      cuStreamSynchronize(nullptr);
    }
    return elapsed.count() / kBatch;
  }

  template <class Operation>
  static double time(Operation operation) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < kBatch; ++i) operation(i);
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kBatch;
  }

  CUfunction pointers_ = nullptr;
  CUfunction block_ = nullptr;
  std::vector<CUdeviceptr> allocations_;
  CUdeviceptr argument_sets_[kArgumentSets][4];
};

int work() {
  Worker worker;
  char name[128];
  while (std::fgets(name, sizeof name, stdin) != nullptr) {
    name[std::strcspn(name, "\n")] = 0;
    std::printf("%.3f\n", worker.run(name));
    std::fflush(stdout);
  }
  return 0;
}

// A worker process and the pipes to it.
class Child {
 public:
  Child(const char* self, const char* preload) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) fail("pipe");
    pid_ = fork();
    if (pid_ < 0) fail("fork");
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      for (const int descriptor : {in[0], in[1], out[0], out[1]}) close(descriptor);
      if (preload != nullptr) setenv("LD_PRELOAD", preload, 1);
      execl(self, self, "--worker", static_cast<char*>(nullptr));
      fail("exec");
    }
    close(in[0]);
    close(out[1]);
    commands_ = fdopen(in[1], "w");
    answers_ = fdopen(out[0], "r");
  }
  ~Child() {
    std::fclose(commands_);
    std::fclose(answers_);
    waitpid(pid_, nullptr, 0);
  }

  double ask(const char* name) {
    std::fprintf(commands_, "%s\n", name);
    std::fflush(commands_);
    double answer = 0;
    if (std::fscanf(answers_, "%lf", &answer) != 1) {
      std::fprintf(stderr, "launch_path: a worker died\n");
      std::exit(1);
    }
    return answer;
  }

 private:
  [[noreturn]] static void fail(const char* what) {
    std::perror(what);
    std::exit(1);
  }
  pid_t pid_;
  std::FILE* commands_;
  std::FILE* answers_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--worker") == 0) return work();
  const int rounds = argc == 3 ? std::atoi(argv[2]) : 20;
  if (argc < 2 || argc > 3 || rounds < 1) {
    std::fprintf(stderr, "usage: launch_path LIBRARY [ROUNDS]\n");
    return 2;
  }
  Child without("/proc/self/exe", nullptr);
  Child with("/proc/self/exe", argv[1]);
  std::printf("%-34s %10s %10s %10s   %s\n", "median of rounds, ns each", "without", "with", "added",
              "added, min .. max");
  for (const char* name :
       {"indirect_call", "launch_4_pointers", "launch_4_pointers_and_digest", "launch_4k_struct_0_pointers",
        "launch_4k_struct_16_pointers", "alloc_free_2MiB", "malloc_free_64B"}) {
    without.ask(name);
    with.ask(name);
    std::vector<double> base, preloaded, added;
    for (int round = 0; round < rounds; ++round) {
      base.push_back(without.ask(name));
      preloaded.push_back(with.ask(name));
      added.push_back(preloaded.back() - base.back());
    }
    const auto [least, most] = std::minmax_element(added.begin(), added.end());
    std::printf("%-34s %10.1f %10.1f %10.1f   %.1f .. %.1f\n", name, median(base), median(preloaded), median(added),
                *least, *most);
  }
  return 0;
}
