// A preload library as others write them: it wraps dlsym in C and passes on through RTLD_NEXT. It stands between the
// program and what comes after it, and appends every ask of cuGetProcAddress_v2 and its answer to the file ASKS_LOG:
//   BASE VERSION FLAGS RESULT STATUS SYMBOL LIBRARY        ("-" for no status wanted, "- -" for no address)
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using Dlsym = void* (*)(void*, const char*);
using GetProcAddress = int (*)(const char*, void**, int, std::uint64_t, int*);

GetProcAddress next_get_proc_address = nullptr;

// dlvsym only sees versioned definitions, the C library's; asked through that one, the next preload library's is found
// too.
Dlsym next_dlsym() {
  static const auto last = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34"));
  static const auto next = reinterpret_cast<Dlsym>(last(RTLD_NEXT, "dlsym"));
  return next;
}

int recording_get_proc_address(const char* base, void** address, int version, std::uint64_t flags, int* status) {
  const int result = next_get_proc_address(base, address, version, flags, status);
  if (std::FILE* log = std::fopen(std::getenv("ASKS_LOG"), "a")) {
    Dl_info info{};
    const bool found =
        address != nullptr && *address != nullptr && dladdr(*address, &info) != 0 && info.dli_sname != nullptr;
    const char* slash = found ? std::strrchr(info.dli_fname, '/') : nullptr;
    std::fprintf(log, "%s %d %llu %d ", *base != '\0' ? base : "(empty)", version,
                 static_cast<unsigned long long>(flags), result);
    status != nullptr ? std::fprintf(log, "%d ", *status) : std::fprintf(log, "- ");
    std::fprintf(log, "%s %s\n", found ? info.dli_sname : "-",
                 found ? (slash != nullptr ? slash + 1 : info.dli_fname) : "-");
    std::fclose(log);
  }
  // The runtime goes on with the function it gets here.
  if (result == 0 && std::strcmp(base, "cuGetProcAddress") == 0 && version >= 12000) {
    *address = reinterpret_cast<void*>(&recording_get_proc_address);
  }
  return result;
}

}  // namespace

// Found by name only through the dlsym below.
extern "C" __attribute__((visibility("hidden"))) void asks_preload_was_here() {}

extern "C" void* dlsym(void* handle, const char* name) {
  if (std::strcmp(name, "asks_preload_was_here") == 0) return reinterpret_cast<void*>(&asks_preload_was_here);
  void* address = next_dlsym()(handle, name);
  if (address != nullptr && std::getenv("ASKS_LOG") != nullptr && std::strcmp(name, "cuGetProcAddress_v2") == 0) {
    next_get_proc_address = reinterpret_cast<GetProcAddress>(address);
    return reinterpret_cast<void*>(&recording_get_proc_address);
  }
  return address;
}
