// Lets the threads of a guest stop for random moments of real time, wherever they are: what is virtual must not notice.
// Named in SIMGPU_KERNELS; registers no kernel.
#include <dirent.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr long kLongestStopNs = 400'000;

void stop(int, siginfo_t* info, void*) {
  const timespec pause{0, info->si_value.sival_int};
  nanosleep(&pause, nullptr);
}

std::vector<pid_t> threads() {
  std::vector<pid_t> found;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return found;
  while (const dirent* task = readdir(tasks)) {
    if (const int id = std::atoi(task->d_name); id > 0) found.push_back(id);
  }
  closedir(tasks);
  return found;
}

void disturb() {
  const auto self = static_cast<pid_t>(syscall(SYS_gettid));
  std::minstd_rand random(std::random_device{}());
  for (;;) {
    for (const pid_t thread : threads()) {
      if (thread == self || random() % 2 == 0) continue;
      siginfo_t info{};
      info.si_code = SI_QUEUE;
      info.si_value.sival_int = static_cast<int>(random() % kLongestStopNs);
      syscall(SYS_rt_tgsigqueueinfo, getpid(), thread, SIGRTMIN + 1, &info);
    }
    const timespec pause{0, static_cast<long>(random() % kLongestStopNs)};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void simgpu_kernels(void) {
  struct sigaction action = {};
  action.sa_sigaction = stop;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGRTMIN + 1, &action, nullptr);
  std::thread(disturb).detach();
}
