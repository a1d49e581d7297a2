// Launches 100,000 times after a warm-up, on tests/null_driver, with every system call forbidden and every allocation
// counted.
//
// The program's own malloc counts and forwards, so that allocations of a preloaded library are counted too. A system
// call in the loop ends the process with SIGSYS: a lock wait would be one (futex), so would an allocation from the
// kernel, a write, a sleep. usage: steady_launch THREADS
#include <cuda.h>
#include <dlfcn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

extern "C" void* __libc_malloc(std::size_t);
extern "C" void* __libc_calloc(std::size_t, std::size_t);
extern "C" void* __libc_realloc(void*, std::size_t);

namespace {
std::atomic<long> allocations{0};
}

extern "C" void* malloc(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
extern "C" void* calloc(std::size_t count, std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}
extern "C" void* realloc(void* pointer, std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(pointer, bytes);
}

namespace {

constexpr int kLaunches = 100000;

// Allows what ends the process and nothing else, in the calling thread.
void forbid_system_calls() {
  const auto allow = [](unsigned number) { return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1); };
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      allow(SYS_exit_group),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      allow(SYS_exit),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const sock_fprog filter{sizeof program / sizeof *program, program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::perror("steady_launch: seccomp");
    _exit(3);
  }
}

std::vector<CUdeviceptr> pointers(64);
CUfunction kernel;

void launch(int count, unsigned offset) {
  for (int i = 0; i < count; ++i) {
    CUdeviceptr* argument = &pointers[(static_cast<unsigned>(i) + offset) % (pointers.size() - 4)];
    void* arguments[] = {argument, argument + 1, argument + 2, argument + 3};
    if (cuLaunchKernel(kernel, 64, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr) != CUDA_SUCCESS) _exit(4);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc == 2 ? std::atoi(argv[1]) : 0;
  if (threads < 1) {
    std::fprintf(stderr, "usage: steady_launch THREADS\n");
    return 2;
  }
  cuInit(0);
  cuModuleGetFunction(&kernel, nullptr, "pointers");
  for (CUdeviceptr& pointer : pointers) cuMemAlloc(&pointer, std::size_t{4} << 20);
  launch(kLaunches, 0);
  cuStreamSynchronize(nullptr);
  // The driver calls everything free; the library counts what is allocated. The test checks that it measured what it
  // means to.
  std::size_t free_bytes = 0, total_bytes = 0;
  cuMemGetInfo(&free_bytes, &total_bytes);
  std::printf("free %zu\n", free_bytes);
  std::fflush(stdout);

  const auto other_calls = reinterpret_cast<unsigned long long (*)()>(dlsym(RTLD_DEFAULT, "null_driver_other_calls"));
  if (other_calls == nullptr) return 5;
  long allocations_before = 0;
  unsigned long long other_calls_before = 0;
  std::atomic<int> ready{0};
  std::atomic<int> done{0};
  const auto steady = [&](unsigned offset) {
    launch(1000, offset);  // a thread's first launch on a stream may ask which context it is in
    forbid_system_calls();
    ready.fetch_add(1);
    while (ready.load() < threads) {
    }
    if (offset == 0) {
      allocations_before = allocations.load();
      other_calls_before = other_calls();
      ready.fetch_add(1);
    }
    while (ready.load() <= threads) {
    }
    launch(kLaunches, offset);
    done.fetch_add(1);
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) {
    others.emplace_back([&, i] {
      steady(static_cast<unsigned>(i));
      for (;;) {  // ending a thread is a system call of its own; the process ends for all
      }
    });
  }
  steady(0);
  while (done.load() < threads) {
  }
  // The verdict is the exit status: printing it would be a system call.
  const bool allocated = allocations.load() != allocations_before;
  const bool called_driver = other_calls() != other_calls_before;
  syscall(SYS_exit_group, allocated ? 1 : called_driver ? 6 : 0);
}
