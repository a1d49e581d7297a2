// Fails the k-th allocation that the library under test makes, k from GUEST_FAIL_ALLOCATION; its calls are known by
// where they return to. Writes the number of its allocations to GUEST_ALLOCATIONS when the program ends.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "tests/guests/library_code.hpp"

extern "C" void* __libc_malloc(std::size_t);
extern "C" void* __libc_calloc(std::size_t, std::size_t);
extern "C" void* __libc_realloc(void*, std::size_t);
extern "C" void* __libc_memalign(std::size_t, std::size_t);

namespace {

long failing = 0;
std::atomic<long> made{0};

__attribute__((constructor)) void begin() {
  if (const char* given = std::getenv("GUEST_FAIL_ALLOCATION")) failing = std::atol(given);
  guests::find_library();
}

__attribute__((destructor)) void write_down() {
  const char* path = std::getenv("GUEST_ALLOCATIONS");
  const int file = path == nullptr ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0) return;
  char text[32];
  const int length = std::snprintf(text, sizeof text, "%ld", made.load());
  if (write(file, text, static_cast<std::size_t>(length)) != length) _exit(9);
  close(file);
}

bool fails(const void* caller) {
  if (!guests::is_of_library(caller) || ++made != failing) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace

#define CALLER __builtin_return_address(0)
extern "C" void* malloc(std::size_t bytes) { return fails(CALLER) ? nullptr : __libc_malloc(bytes); }
extern "C" void* calloc(std::size_t count, std::size_t bytes) {
  return fails(CALLER) ? nullptr : __libc_calloc(count, bytes);
}
extern "C" void* realloc(void* memory, std::size_t bytes) {
  return fails(CALLER) ? nullptr : __libc_realloc(memory, bytes);
}
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return fails(CALLER) ? nullptr : __libc_memalign(alignment, bytes);
}
extern "C" void* mmap(void* at, std::size_t bytes, int protection, int flags, int file, off_t offset) {
  if (fails(CALLER)) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
}
