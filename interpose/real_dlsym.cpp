#include "interpose/real_dlsym.hpp"

#include <dlfcn.h>

// On the dlsym path (lookup_exports.cpp): dlvsym, which hmshim does not override, is the only library function called.
namespace hmshim::interpose {
namespace {

// dlsym moved to libc in glibc 2.34; before, it has the version with which the architecture began.
#if defined(__x86_64__)
constexpr const char* kFirstVersion = "GLIBC_2.2.5";
#elif defined(__aarch64__)
constexpr const char* kFirstVersion = "GLIBC_2.17";
#else
#error "hmshim runs on x86_64 and aarch64"
#endif

void* nothing_found(void*, const char*) { return nullptr; }

Dlsym found = nullptr;

}  // namespace

Dlsym real_dlsym() noexcept {
  Dlsym dlsym = __atomic_load_n(&found, __ATOMIC_RELAXED);
  if (dlsym != nullptr) return dlsym;
  dlsym = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34"));
  if (dlsym == nullptr) dlsym = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", kFirstVersion));
  if (dlsym == nullptr) return nothing_found;
  // dlvsym passes over the unversioned dlsym of another preload library, which must not lose its turn.
  if (void* next = dlsym(RTLD_NEXT, "dlsym")) dlsym = reinterpret_cast<Dlsym>(next);
  __atomic_store_n(&found, dlsym, __ATOMIC_RELAXED);
  return dlsym;
}

}  // namespace hmshim::interpose
