// Fails the k-th allocation that the library under test makes, k from GUEST_FAIL_ALLOCATION; its calls are known by
// where they return to. Writes the number of its allocations to GUEST_ALLOCATIONS when the program ends.
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" void* __libc_malloc(std::size_t);
extern "C" void* __libc_calloc(std::size_t, std::size_t);
extern "C" void* __libc_realloc(void*, std::size_t);
extern "C" void* __libc_memalign(std::size_t, std::size_t);

namespace {

std::uintptr_t first = 0, end = 0;  // of the library's code
long failing = 0;
std::atomic<long> made{0};

int find_library(dl_phdr_info* object, std::size_t, void*) {
  if (std::strstr(object->dlpi_name, "libhmshim.so") == nullptr) return 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    first = object->dlpi_addr + segment.p_vaddr;
    end = first + segment.p_memsz;
  }
  return 1;
}

__attribute__((constructor)) void begin() {
  if (const char* given = std::getenv("GUEST_FAIL_ALLOCATION")) failing = std::atol(given);
  dl_iterate_phdr(find_library, nullptr);
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
  const auto from = reinterpret_cast<std::uintptr_t>(caller);
  if (from < first || from >= end || ++made != failing) return false;
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
