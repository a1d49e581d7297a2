#pragma once
// Where the code of the library under test lies: who allocates is known by where its call returns to.
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace guests {

inline std::uintptr_t library_begin = 0, library_end = 0;

/// From a constructor.
inline void find_library() {
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void*) {
        if (std::strstr(object->dlpi_name, "libhmshim.so") == nullptr) return 0;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& segment = object->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
          library_begin = object->dlpi_addr + segment.p_vaddr;
          library_end = library_begin + segment.p_memsz;
        }
        return 1;
      },
      nullptr);
}

inline bool is_of_library(const void* caller) {
  const auto from = reinterpret_cast<std::uintptr_t>(caller);
  return from >= library_begin && from < library_end;
}

}  // namespace guests
