// An allocator that calls CUDA, whenever the library under test allocates: at the moments that are worst for it, inside
// its handlers and in its threads. Such an allocator must cope with being called back from CUDA, for the driver
// allocates too.
#include <dlfcn.h>

#include <cstddef>

#include "tests/guests/library_code.hpp"

extern "C" void* __libc_malloc(std::size_t);

namespace {

__attribute__((constructor)) void begin() { guests::find_library(); }

[[gnu::tls_model("initial-exec")]] thread_local bool is_inside = false;

/// What a program would reach: the library's own wrappers.
void call_cuda() {
  const auto allocate = reinterpret_cast<int (*)(void**, std::size_t)>(dlsym(RTLD_DEFAULT, "cuMemAllocHost_v2"));
  const auto tell = reinterpret_cast<int (*)(std::size_t*, std::size_t*)>(dlsym(RTLD_DEFAULT, "cuMemGetInfo_v2"));
  void* pinned = nullptr;
  std::size_t free = 0, total = 0;
  if (allocate != nullptr) allocate(&pinned, 4096);
  if (tell != nullptr) tell(&free, &total);
}

}  // namespace

extern "C" void* malloc(std::size_t bytes) {
  if (!is_inside && guests::is_of_library(__builtin_return_address(0))) {
    is_inside = true;
    call_cuda();
    is_inside = false;
  }
  return __libc_malloc(bytes);
}
