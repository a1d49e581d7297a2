// One way of living and dying a run, named by the first argument. Every way has CUDA work under way.
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

constexpr std::size_t kBytes = std::size_t{4} << 20;
const char* program;

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: driver error %d\n", what, static_cast<int>(result));
  std::_Exit(1);
}
#define CHECK(call) check(call, #call)

void start() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
}

/// Allocates, writes, reads back and frees.
void work() {
  CUdeviceptr address = 0;
  unsigned word = 0;
  CHECK(cuMemAlloc(&address, kBytes));
  CHECK(cuMemsetD32(address, 7, kBytes / 4));
  CHECK(cuMemcpyDtoH(&word, address + kBytes - 4, 4));
  CHECK(cuMemFree(address));
  if (word != 7) check(CUDA_ERROR_UNKNOWN, "wrong data");
}

void say(const char* text) {
  std::puts(text);
  std::fflush(stdout);
}

int wait_for(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Threads that never stop calling, so that whatever locks there are are held at any moment.
void keep_busy(int threads) {
  CUcontext context = nullptr;
  CHECK(cuCtxGetCurrent(&context));
  for (int i = 0; i < threads; ++i) {
    std::thread([context] {
      cuCtxSetCurrent(context);
      for (;;) {
        CUdeviceptr address = 0;
        if (cuMemAlloc(&address, kBytes) == CUDA_SUCCESS) cuMemFree(address);
      }
    }).detach();
  }
}

// ---- children

void fork_child() {
  start();
  work();
  keep_busy(2);
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) std::exit(cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED ? 3 : 4);
    if (const int status = wait_for(child); status != 3) std::printf("child ended with %d\n", status);
  }
  say("children ended");
}

void fork_before_start() {
  const pid_t child = fork();
  start();
  work();
  say(child == 0 ? "child worked" : "parent worked");
  if (child == 0) std::exit(0);
  std::printf("child ended with %d\n", wait_for(child));
}

void exec_in_child(pid_t child, const char* mode) {
  if (child == 0) {
    execl(program, program, mode, nullptr);
    _exit(9);
  }
  std::printf("child ended with %d\n", wait_for(child));
}

void fork_exec() {
  start();
  work();
  exec_in_child(fork(), "work");
}

void vfork_exec() {
  start();
  work();
  exec_in_child(vfork(), "work");
  work();
}

void spawn() {
  start();
  work();
  pid_t child = 0;
  char mode[] = "work";
  char* arguments[] = {const_cast<char*>(program), mode, nullptr};
  if (posix_spawn(&child, program, nullptr, nullptr, arguments, environ) != 0) _exit(9);
  std::printf("child ended with %d\n", wait_for(child));
  work();
}

/// A child that no fork handler has heard of.
void clone_child() {
  start();
  work();
  const auto child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (child == 0) std::exit(5);
  std::printf("child ended with %d\n", wait_for(child));
  work();
}

void exec_itself() {
  start();
  work();
  execl(program, program, "work", nullptr);
}

// ---- ends

void exit_from_a_thread() {
  start();
  work();
  keep_busy(2);
  std::thread([] { std::exit(6); }).join();
}

void end_at_once() {
  start();
  work();
  _exit(7);
}

void exit_from_a_signal_handler() {
  start();
  keep_busy(1);
  signal(SIGALRM, [](int) { std::exit(8); });
  ualarm(30'000, 0);
  for (;;) work();
}

/// Handlers and destructors that run before and after those of whatever else is in the process.
struct WorksAtTheEnd {
  ~WorksAtTheEnd() {
    work();
    say("destructor worked");
  }
};

void at_exit() {
  std::atexit([] {
    work();
    say("first handler worked");
  });
  start();
  static WorksAtTheEnd last;
  std::atexit([] {
    work();
    say("second handler worked");
  });
  work();
}

// ---- beginnings

void just_work() {
  start();
  work();
  say("worked");
}

void cold_start() {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&ready] {
      ++ready;
      while (ready < 16) {
      }
      start();
      work();
    });
  }
  for (std::thread& thread : threads) thread.join();
  say("worked");
}

void no_environment() {
  clearenv();
  just_work();
}

void closed_files() {
  for (int file = 0; file < 3; ++file) close(file);
  start();
  work();
  // What the program writes next must not get into a file of anybody else's.
  const char text[] = "to a closed stdout\n";
  std::exit(write(STDOUT_FILENO, text, sizeof text - 1) < 0 ? 0 : 1);
}

void deep_bind() {
  start();
  void* library = dlopen(std::getenv("GUEST_LIBRARY"), RTLD_NOW | RTLD_DEEPBIND);
  if (library == nullptr) _exit(9);
  auto* allocate = reinterpret_cast<CUresult (*)(CUdeviceptr*, std::size_t)>(dlsym(library, "comm_allocate"));
  CUdeviceptr address = 0;
  CHECK(allocate(&address, kBytes));
  CHECK(cuMemFree(address));
  say("worked");
}

void name_space() {
  start();
  work();
  say(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW) != nullptr ? "loaded again" : dlerror());
}

struct Mode {
  const char* name;
  void (*run)();
};
constexpr Mode kModes[] = {{"work", just_work},
                           {"fork", fork_child},
                           {"fork_before_start", fork_before_start},
                           {"fork_exec", fork_exec},
                           {"vfork_exec", vfork_exec},
                           {"spawn", spawn},
                           {"clone", clone_child},
                           {"exec", exec_itself},
                           {"thread_exit", exit_from_a_thread},
                           {"_exit", end_at_once},
                           {"signal_exit", exit_from_a_signal_handler},
                           {"at_exit", at_exit},
                           {"cold_start", cold_start},
                           {"no_environment", no_environment},
                           {"closed_files", closed_files},
                           {"deep_bind", deep_bind},
                           {"namespace", name_space}};

/// Before main, as some libraries do.
__attribute__((constructor)) void work_in_a_constructor(int, char** arguments, char**) {
  if (arguments[1] == nullptr || std::strcmp(arguments[1], "constructor") != 0) return;
  cold_start();
}

}  // namespace

int main(int argc, char** argv) {
  program = "/proc/self/exe";
  if (argc == 2 && std::strcmp(argv[1], "constructor") == 0) return 0;
  for (const Mode& mode : kModes) {
    if (argc != 2 || std::string(argv[1]) != mode.name) continue;
    mode.run();
    return 0;
  }
  std::fprintf(stderr, "usage: process_life MODE\n");
  return 2;
}
