#include "interpose/callers.hpp"

#include <link.h>

#include <algorithm>

namespace hmshim::interpose {

namespace {

// NCCL, UCX and NVSHMEM share their buffers by IPC or VMM handles, or register them with a network card.
constexpr std::string_view kNeedDeviceMemory[] = {"libnccl", "libuct_cuda", "libucm_cuda", "libnvshmem_host"};

struct Search {
  std::uintptr_t address;
  const char* path = nullptr;
};

int visit(dl_phdr_info* object, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || search.address - object->dlpi_addr - segment.p_vaddr >= segment.p_memsz) continue;
    search.path = object->dlpi_name;
    return 1;
  }
  return 0;
}

}  // namespace

std::string library_of(const void* address) {
  Search search{reinterpret_cast<std::uintptr_t>(address)};
  if (dl_iterate_phdr(visit, &search) == 0) return {};
  // The string is made here: an exception must not pass through the C library, whose unwinder is not ours.
  const std::string_view path = search.path;
  return std::string(path.substr(path.rfind('/') + 1));
}

bool is_named(std::string_view library, std::string_view name) noexcept {
  return library.starts_with(name) && (library.size() == name.size() || library[name.size()] == '.');
}

bool Callers::is_excluded(const void* address) {
  const auto key = reinterpret_cast<std::uintptr_t>(address);
  // Code is not aligned: all bits count.
  std::atomic<std::uint64_t>& answer = answers_[(key * 0x9E3779B97F4A7C15ULL) >> 56];
  if (const std::uint64_t known = answer.load(std::memory_order_relaxed); known >> 1 == key) return known % 2 != 0;
  const std::string library = library_of(address);
  const auto names = [&](std::string_view name) { return is_named(library, name); };
  const bool is_excluded = std::ranges::any_of(kNeedDeviceMemory, names) || std::ranges::any_of(excluded_, names);
  answer.store(std::uint64_t{key} << 1 | (is_excluded ? 1 : 0), std::memory_order_relaxed);
  return is_excluded;
}

CallerTally& Callers::tally_of(const void* address) {
  std::string library = library_of(address);
  const auto known = std::ranges::find(tallies_, library, &CallerTally::name);
  return known != tallies_.end() ? *known : tallies_.emplace_back(CallerTally{.name = std::move(library)});
}

void Callers::note_excluded(const void* address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  CallerTally& tally = tally_of(address);
  ++tally.excluded_allocations;
  tally.excluded_bytes += bytes;
}

bool Callers::note_refused(const void* address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  CallerTally& tally = tally_of(address);
  tally.refused_bytes += bytes;
  return ++tally.refused_handles == 1;
}

std::vector<CallerTally> Callers::tallies() const {
  const std::lock_guard lock(mutex_);
  return tallies_;
}

}  // namespace hmshim::interpose
