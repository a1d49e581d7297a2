// What the library costs a process: memory for each allocation that is held, and time to start.
//
// usage: process_cost LIBRARY [PROCESSES [ROUNDS]]
//
// Runs itself on tests/null_driver, with LIBRARY preloaded and without. Bytes are what the process grew by while it
// took COUNT allocations, so that the program's own list of them is in both columns. Times are of PROCESSES started at
// once (200), from the fork to the end as their parent saw it.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Holding {
  const char* name;
  std::size_t bytes;
  int count;
  bool is_async;
};
// As many as the null driver's 64 GiB and the host let be promised.
constexpr Holding kHoldings[] = {{"device memory, 4 KiB", 4096, 1'000'000, false},
                                 {"stream-ordered, 4 KiB", 4096, 1'000'000, true},
                                 {"managed, 2 MiB", std::size_t{2} << 20, 20'000, false}};

std::size_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long size = 0, resident = 0;
  const bool is_read = file != nullptr && std::fscanf(file, "%lu %lu", &size, &resident) == 2;
  if (file != nullptr) std::fclose(file);
  return is_read ? resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

/// Prints bytes per allocation.
int hold(const Holding& holding) {
  cuInit(0);
  CUdeviceptr first = 0;
  const auto allocate = [&](CUdeviceptr* address) {
    return holding.is_async ? cuMemAllocAsync(address, holding.bytes, nullptr) : cuMemAlloc(address, holding.bytes);
  };
  if (allocate(&first) != CUDA_SUCCESS) return 1;
  std::vector<CUdeviceptr> held(static_cast<std::size_t>(holding.count));
  const std::size_t before = resident_bytes();
  for (CUdeviceptr& address : held) {
    if (allocate(&address) != CUDA_SUCCESS) return 1;
  }
  std::printf("%.1f\n", static_cast<double>(resident_bytes() - before) / holding.count);
  return 0;
}

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

pid_t start(const char* library, const char* mode, const char* argument, int out = -1) {
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child != 0) return child;
  if (out >= 0) dup2(out, STDOUT_FILENO);
  if (library != nullptr) setenv("LD_PRELOAD", library, 1);
  execl("/proc/self/exe", "process_cost", mode, argument, static_cast<char*>(nullptr));
  fail("exec");
}

double held_bytes(const char* library, int which) {
  int pipes[2];
  if (pipe(pipes) != 0) fail("pipe");
  const pid_t child = start(library, "--hold", std::to_string(which).c_str(), pipes[1]);
  close(pipes[1]);
  std::FILE* answer = fdopen(pipes[0], "r");
  double bytes = 0;
  const bool is_read = std::fscanf(answer, "%lf", &bytes) == 1;
  std::fclose(answer);
  waitpid(child, nullptr, 0);
  if (!is_read) {
    std::fprintf(stderr, "process_cost: a process could not hold that much\n");
    std::exit(1);
  }
  return bytes;
}

/// Milliseconds that each of `count` processes lived.
std::vector<double> lives(const char* library, const char* mode, int count) {
  std::map<pid_t, Clock::time_point> begun;
  for (int i = 0; i < count; ++i) {
    const auto now = Clock::now();
    begun[start(library, mode, nullptr)] = now;
  }
  std::vector<double> took;
  for (int i = 0; i < count; ++i) {
    const pid_t child = wait(nullptr);
    took.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begun.at(child)).count());
  }
  std::sort(took.begin(), took.end());
  return took;
}

double percentile(const std::vector<double>& sorted, std::size_t percent) {
  return sorted[std::min(sorted.size() * percent / 100, sorted.size() - 1)];
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure_starts(const char* library, const char* mode, const char* name, int processes, int rounds) {
  std::map<std::size_t, std::vector<double>> without, with, added;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<double> base = lives(nullptr, mode, processes), preloaded = lives(library, mode, processes);
    for (const std::size_t percent : {50, 99}) {
      without[percent].push_back(percentile(base, percent));
      with[percent].push_back(percentile(preloaded, percent));
      added[percent].push_back(with[percent].back() - without[percent].back());
    }
  }
  for (const std::size_t percent : {50, 99}) {
    std::printf("%-28s p%-4zu %10.2f %10.2f %10.2f\n", name, percent, median(without[percent]), median(with[percent]),
                median(added[percent]));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--hold") == 0) return hold(kHoldings[std::atoi(argv[2])]);
  if (argc == 2 && std::strcmp(argv[1], "--start") == 0) return cuInit(0) == CUDA_SUCCESS ? 0 : 1;
  if (argc == 2 && std::strcmp(argv[1], "--nothing") == 0) return 0;
  const int processes = argc > 2 ? std::atoi(argv[2]) : 200;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 9;
  if (argc < 2 || processes < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: process_cost LIBRARY [PROCESSES [ROUNDS]]\n");
    return 2;
  }
  std::printf("%-34s %10s %10s %10s\n", "bytes per allocation held", "without", "with", "added");
  for (int which = 0; which < static_cast<int>(std::size(kHoldings)); ++which) {
    const double without = held_bytes(nullptr, which), with = held_bytes(argv[1], which);
    std::printf("%-34s %10.1f %10.1f %10.1f\n", kHoldings[which].name, without, with, with - without);
  }
  std::printf("%-34s %10s %10s %10s\n", "ms to start and end, all at once", "without", "with", "added");
  measure_starts(argv[1], "--nothing", "a program without CUDA", processes, rounds);
  measure_starts(argv[1], "--start", "a program that starts CUDA", processes, rounds);
}
