// Every export of the driver, and the lookup that hands them out.
//
// A symbol that the simulated GPU models is defined, strongly, in a file of its family. All others end in the weak
// definitions below. The declarations here have no parameters on purpose: cuda.h is not included, so that its renaming
// macros leave the rows of entries.def alone, and a C function that ignores its arguments is callable with any.
#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "tests/simgpu/driver/lookup.hpp"

#define SIMGPU_ENTRY(base, since, flavour, symbol) \
  extern "C" __attribute__((weak, visibility("default"))) int symbol() { return hmshim::simgpu::kNotSupported; }
#include "tests/simgpu/driver/entries.def"
#undef SIMGPU_ENTRY

namespace hmshim::simgpu {
namespace {

enum Flavour : bool { legacy, ptsz };

struct Entry {
  std::string_view base;
  int since;
  Flavour flavour;
  std::string_view symbol;
  int (*address)();
};

// Sorted by base, flavour, version: the generator writes the rows so.
constexpr Entry kEntries[] = {
#define SIMGPU_ENTRY(base, since, flavour, symbol) {#base, since, flavour, #symbol, &symbol},
#include "tests/simgpu/driver/entries.def"
#undef SIMGPU_ENTRY
};

}  // namespace

Lookup look_up(std::string_view base, int version, bool per_thread) noexcept {
  const auto [first, last] =
      std::equal_range(std::begin(kEntries), std::end(kEntries), Entry{base, 0, legacy, {}, nullptr},
                       [](const Entry& a, const Entry& b) { return a.base < b.base; });
  if (first == last) return {nullptr, LookupStatus::SymbolNotFound};
  const Entry* newest = nullptr;
  for (const Entry* entry = first; entry != last; ++entry) {
    if (entry->since > version || (entry->flavour == ptsz && !per_thread)) continue;
    // Rows of one flavour ascend by version, and the per-thread flavour, where there is one, comes second and wins.
    newest = entry;
  }
  if (newest == nullptr) return {nullptr, LookupStatus::VersionNotSufficient};
  return {reinterpret_cast<void*>(newest->address), LookupStatus::Found};
}

bool is_export(std::string_view symbol) noexcept {
  return std::ranges::any_of(kEntries, [symbol](const Entry& entry) { return entry.symbol == symbol; });
}

}  // namespace hmshim::simgpu
