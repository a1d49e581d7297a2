// The allocator variables of PyTorch as this process is to see them. getenv is how its C++ reads them; the environment
// itself stays the user's, so no child inherits what only makes sense beside the library, however it is started.
#include <dlfcn.h>
#include <unistd.h>

#include "interpose/granularity.hpp"
#include "interpose/real_dlsym.hpp"

namespace {

using Getenv = char* (*)(const char*);
Getenv next = nullptr;

// Before the library's constructor has run. Allocators read their options before they can serve dlsym, so nothing is
// looked up from here.
char* find(const char* name) noexcept {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const char* a = *entry;
    const char* b = name;
    while (*b != '\0' && *a == *b) ++a, ++b;
    if (*b == '\0' && *a == '=') return *entry + (a + 1 - *entry);
  }
  return nullptr;
}

[[gnu::constructor]] void on_load() {
  hmshim::interpose::apply_granularity();
  next = reinterpret_cast<Getenv>(hmshim::interpose::real_dlsym()(RTLD_NEXT, "getenv"));
}

}  // namespace

extern "C" [[gnu::visibility("default")]] char* getenv(const char* name) noexcept {
  if (char* value = hmshim::interpose::allocator_variable(name)) return value;
  return next != nullptr ? next(name) : find(name);
}
