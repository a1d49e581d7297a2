// A thread is cancelled while it waits in the driver, as pthread_cancel allows: the program goes on without it.
#include <cuda.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>

namespace {

void* wait_for_ever(void*) {
  cuEventSynchronize(nullptr);
  return nullptr;
}

}  // namespace

int main() {
  if (cuInit(0) != CUDA_SUCCESS) return 1;
  size_t total = 0;
  cuDeviceTotalMem(&total, 0);
  std::printf("total %zu\n", total);
  pthread_t thread;
  void* result = nullptr;
  if (pthread_create(&thread, nullptr, wait_for_ever, nullptr) != 0) return 1;
  usleep(50'000);
  if (pthread_cancel(thread) != 0 || pthread_join(thread, &result) != 0) return 1;
  std::puts(result == PTHREAD_CANCELED ? "cancelled" : "ended");
}
