#include "interpose/unseen.hpp"

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <set>
#include <string_view>

#include "interpose/callers.hpp"
#include "interpose/lookup.hpp"

namespace hmshim::interpose {

namespace {

constexpr std::string_view kDriver = "libcuda.so";

// The parts of an object's dynamic section that say how it was bound.
struct Bindings {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * relocations[2] = {};  // of data, of calls
  std::size_t counts[2] = {};
};

Bindings read_bindings(const ElfW(Dyn) * dynamic) noexcept {
  Bindings found;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    switch (dynamic->d_tag) {
      case DT_SYMTAB:
        found.symbols = reinterpret_cast<const ElfW(Sym)*>(dynamic->d_un.d_ptr);
        break;
      case DT_STRTAB:
        found.names = reinterpret_cast<const char*>(dynamic->d_un.d_ptr);
        break;
      case DT_RELA:
        found.relocations[0] = reinterpret_cast<const ElfW(Rela)*>(dynamic->d_un.d_ptr);
        break;
      case DT_RELASZ:
        found.counts[0] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
        break;
      case DT_JMPREL:
        found.relocations[1] = reinterpret_cast<const ElfW(Rela)*>(dynamic->d_un.d_ptr);
        break;
      case DT_PLTRELSZ:
        found.counts[1] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
        break;
      default:
        break;
    }
  }
  return found;
}

// A place in an object that holds the address of a wrapped function.
struct Reference {
  std::uintptr_t target;
  std::string holder;  // file name of the object
};

void collect(const dl_phdr_info& object, std::vector<Reference>& references) {
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    if (object.dlpi_phdr[i].p_type == PT_DYNAMIC)
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + object.dlpi_phdr[i].p_vaddr);
  }
  if (dynamic == nullptr) return;
  const Bindings bindings = read_bindings(dynamic);
  // The kernel's own object keeps addresses that the loader has not relocated.
  if (reinterpret_cast<std::uintptr_t>(bindings.symbols) < object.dlpi_addr || bindings.names == nullptr) return;
  const std::string_view path = object.dlpi_name;
  for (int table = 0; table < 2; ++table) {
    for (std::size_t i = 0; bindings.relocations[table] != nullptr && i < bindings.counts[table]; ++i) {
      const ElfW(Rela)& relocation = bindings.relocations[table][i];
#if defined(__x86_64__)
      const bool is_binding =
          ELF64_R_TYPE(relocation.r_info) == R_X86_64_JUMP_SLOT || ELF64_R_TYPE(relocation.r_info) == R_X86_64_GLOB_DAT;
#else
      const bool is_binding = ELF64_R_TYPE(relocation.r_info) == R_AARCH64_JUMP_SLOT ||
                              ELF64_R_TYPE(relocation.r_info) == R_AARCH64_GLOB_DAT;
#endif
      if (!is_binding) continue;
      const char* name = bindings.names + bindings.symbols[ELF64_R_SYM(relocation.r_info)].st_name;
      if (find_symbol(name) == nullptr) continue;
      references.push_back({*reinterpret_cast<const std::uintptr_t*>(object.dlpi_addr + relocation.r_offset),
                            std::string(path.substr(path.rfind('/') + 1))});
    }
  }
}

}  // namespace

std::vector<std::string> libraries_bound_to_driver() {
  struct Collection {
    std::vector<Reference> references{};
    std::exception_ptr error{};
  } collection;
  // No exception may pass through the C library, whose unwinder is not ours.
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* data) {
        Collection& found = *static_cast<Collection*>(data);
        try {
          collect(*object, found.references);
        } catch (...) {
          found.error = std::current_exception();
        }
        return found.error != nullptr ? 1 : 0;
      },
      &collection);
  if (collection.error != nullptr) std::rethrow_exception(collection.error);
  std::set<std::string> bound;
  for (const Reference& reference : collection.references) {
    // A call that was never made still leads into the object's own stub.
    const std::string target = library_of(reinterpret_cast<const void*>(reference.target));
    if (target.starts_with(kDriver) && !reference.holder.starts_with(kDriver)) bound.insert(reference.holder);
  }
  return {bound.begin(), bound.end()};
}

int driver_copies() {
  // Each copy has one mapping of the file's beginning.
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return 1;
  int copies = 0;
  char line[1024];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long long offset = 1;
    const std::string_view text = line;
    const std::size_t name = text.rfind('/') + 1;
    copies += std::sscanf(line, "%*x-%*x %*s %llx", &offset) == 1 && offset == 0 && name != 0 &&
              text.substr(name).starts_with(kDriver);
  }
  std::fclose(maps);
  return copies;
}

}  // namespace hmshim::interpose
