// More of everything than usual, named by the first argument: threads, devices, allocations held at once, threads that
// run into a limit together. Prints what a program is told and what it read back.
#include <cuda.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kBytes = std::size_t{4} << 20;

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: driver error %d\n", what, static_cast<int>(result));
  std::_Exit(1);
}
#define CHECK(call) check(call, #call)

CUcontext enter(int ordinal) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CHECK(cuDeviceGet(&device, ordinal));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  return context;
}

template <class Work>
void in_threads(int count, Work work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

/// Allocates, writes, reads back and frees; true when all of it held.
bool holds(std::size_t bytes, unsigned value) {
  CUdeviceptr address = 0;
  unsigned words[2] = {};
  CHECK(cuMemAlloc(&address, bytes));
  CHECK(cuMemsetD32(address, value, bytes / 4));
  CHECK(cuMemcpyDtoH(&words[0], address, 4));
  CHECK(cuMemcpyDtoH(&words[1], address + bytes - 4, 4));
  CHECK(cuMemFree(address));
  return words[0] == value && words[1] == value;
}

void threads(int count) {
  std::atomic<int> right{0};
  in_threads(count, [&](int i) {
    enter(0);
    right += holds(kBytes, static_cast<unsigned>(i) + 1);
    right += holds(4096, static_cast<unsigned>(i) + 1);
  });
  std::printf("%d of %d right\n", right.load(), count * 2);
}

void devices(int count) {
  std::vector<int> right(static_cast<std::size_t>(count));
  in_threads(count, [&](int i) {
    enter(i);
    std::size_t free_bytes = 0, total_bytes = 0;
    for (unsigned round = 0; round < 4; ++round) right[static_cast<std::size_t>(i)] += holds(kBytes, round + 1);
    CHECK(cuMemGetInfo(&free_bytes, &total_bytes));
    right[static_cast<std::size_t>(i)] += free_bytes <= total_bytes;
  });
  for (const int each : right) std::printf("%d of 5 right\n", each);
}

void held(int count) {
  enter(0);
  std::vector<CUdeviceptr> addresses(static_cast<std::size_t>(count));
  for (CUdeviceptr& address : addresses) CHECK(cuMemAlloc(&address, 4096));
  int right = 0;
  for (std::size_t i = 0; i < addresses.size(); i += 1000) {
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    CHECK(cuMemGetAddressRange(&base, &bytes, addresses[i] + 4095));
    right += base == addresses[i] && bytes == 4096;
  }
  std::printf("%d right\n", right);
  for (const CUdeviceptr address : addresses) CHECK(cuMemFree(address));
}

/// All at once until there is no more.
void limit(int count) {
  enter(0);
  std::atomic<int> granted{0};
  std::atomic<int> refused{0};
  in_threads(count, [&](int) {
    enter(0);
    for (int i = 0; i < 8; ++i) {
      CUdeviceptr address = 0;
      const CUresult result = cuMemAlloc(&address, kBytes);
      if (result != CUDA_ERROR_OUT_OF_MEMORY) CHECK(result);
      ++(result == CUDA_SUCCESS ? granted : refused);
    }
  });
  std::printf("granted %d refused %d\n", granted.load(), refused.load());
}

/// What a program is told about memory while it takes more and more of it, in shares of the total.
void shares(int percent) {
  enter(0);
  std::size_t free_bytes = 0, total_bytes = 0;
  CHECK(cuMemGetInfo(&free_bytes, &total_bytes));
  std::printf("nothing to write to -> %d\n", static_cast<int>(cuMemGetInfo(nullptr, nullptr)));
  std::printf("free is not above the total: %d\n", free_bytes <= total_bytes);
  std::vector<CUdeviceptr> taken;
  const std::size_t share = total_bytes / 100 * static_cast<std::size_t>(percent);
  CUresult result = CUDA_SUCCESS;
  while (result == CUDA_SUCCESS) {
    CUdeviceptr address = 0;
    result = cuMemAlloc(&address, share);
    if (result != CUDA_SUCCESS) break;
    taken.push_back(address);
    const std::size_t before = free_bytes;
    CHECK(cuMemGetInfo(&free_bytes, &total_bytes));
    if (free_bytes > before) std::puts("less is taken and more is free");
  }
  std::printf("%zu taken, then -> %d\n", taken.size(), static_cast<int>(result));
  for (const CUdeviceptr address : taken) CHECK(cuMemFree(address));
}

}  // namespace

int main(int argc, char** argv) {
  const struct {
    const char* name;
    void (*run)(int);
  } modes[] = {{"threads", threads}, {"devices", devices}, {"held", held}, {"limit", limit}, {"shares", shares}};
  CHECK(cuInit(0));
  for (const auto& mode : modes) {
    if (argc != 3 || std::string(argv[1]) != mode.name) continue;
    mode.run(std::atoi(argv[2]));
    return 0;
  }
  std::fprintf(stderr, "usage: many threads|devices|held|limit|shares NUMBER\n");
  return 2;
}
