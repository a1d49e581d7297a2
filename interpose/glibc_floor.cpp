// What the static C++ runtime inside this library asks of a newer glibc than the floor, 2.34, offers: hidden
// definitions with the same meaning, so that the library runs wherever the floor does.
//
// The floor is the glibc in which libpthread and libdl became parts of libc (NEWS for version 2.34): below it the same
// functions carry other versions in other files, and one build cannot name both.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>

extern "C" {

// glibc 2.36; std::random_device. From the kernel, which glibc's asks too.
__attribute__((visibility("hidden"))) std::uint32_t arc4random() {
  std::uint32_t number = 0;
  if (getentropy(&number, sizeof number) != 0) __builtin_trap();  // as glibc's, which ends the process
  return number;
}

// glibc 2.35; the unwinder. `result` says where the unwind table of the object around an address lies.
__attribute__((visibility("hidden"))) int _dl_find_object(void* address, dl_find_object* result) noexcept {
  struct Search {
    std::uintptr_t address;
    dl_find_object* result;
  } search{reinterpret_cast<std::uintptr_t>(address), result};
  const auto visit = [](dl_phdr_info* object, std::size_t, void* data) {
    const auto& [wanted, found] = *static_cast<Search*>(data);
    bool is_inside = false;
    void* table = nullptr;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = object->dlpi_phdr[i];
      const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
      if (segment.p_type == PT_LOAD && wanted - begin < segment.p_memsz) {
        is_inside = true;
        found->dlfo_map_start = reinterpret_cast<void*>(begin);
        found->dlfo_map_end = reinterpret_cast<void*>(begin + segment.p_memsz);
      }
      if (segment.p_type == PT_GNU_EH_FRAME) table = reinterpret_cast<void*>(begin);
    }
    if (!is_inside) return 0;
    found->dlfo_eh_frame = table;
    return table != nullptr ? 1 : -1;
  };
  return dl_iterate_phdr(visit, &search) == 1 ? 0 : -1;
}

}  // extern "C"
