#include "tests/simgpu/model/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

extern "C" [[gnu::weak]] void __tsan_init();

namespace hmshim::simgpu::machine {
namespace {

struct Layout {
  std::uint64_t device_base, device_stride, managed_base, managed_bytes;
};
// Between the executable's usual places (0x4000..., 0x55...) and the mmap area (0x7f...): free on x86-64 and AArch64,
// and a pointer tells at a glance whose it is. As on hardware the lower half is no round number: what is left of a
// pointer in a kernel's padding, half overwritten with a small integer, is no address.
constexpr Layout kUsual{0x202a9c000000, 1ULL << 40, 0x302a9c000000, 1ULL << 44};
// ThreadSanitizer keeps its shadow below 0x7e80..., and the kernel's mmap area starts near 0x7fff....
constexpr Layout kThreadSanitized{0x7e8000000000, 1ULL << 34, 0x7ec000000000, 1ULL << 37};

// Whether this library is instrumented or only the program.
const Layout& layout() { return __tsan_init != nullptr ? kThreadSanitized : kUsual; }

constexpr std::uint64_t kSmallAlignment = 512;
constexpr std::uint64_t kLargeBytes = 1U << 20;

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

bool reserve(std::uint64_t address, std::uint64_t bytes, int extra_flags) {
  void* got =
      mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | extra_flags, -1, 0);
  if (got == MAP_FAILED) return false;
  // A huge page would make neighbours of a touched page look touched (regions_in_core).
  madvise(got, bytes, MADV_NOHUGEPAGE);
  madvise(got, bytes, MADV_DONTDUMP);
  return true;
}

/// What an allocation takes from its space: small device allocations share chunks, all else has its own.
struct Footprint {
  std::uint64_t bytes;
  std::uint64_t alignment;
};
Footprint footprint(MemoryKind kind, std::uint64_t bytes) {
  if (kind == MemoryKind::kManaged || bytes >= kLargeBytes) return {round_up(bytes, kBlockBytes), kBlockBytes};
  return {round_up(bytes, kSmallAlignment), kSmallAlignment};
}

std::vector<unsigned char> pages_in_core(std::uint64_t address, std::uint64_t bytes) {
  std::vector<unsigned char> in_core(round_up(bytes, kPageBytes) / kPageBytes);
  if (mincore(pointer(address), bytes, in_core.data()) != 0) std::fill(in_core.begin(), in_core.end(), 0);
  return in_core;
}

}  // namespace

std::optional<std::uint64_t> FreeRanges::take(std::uint64_t bytes, std::uint64_t alignment) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [begin, end] = *it;
    const std::uint64_t address = round_up(begin, alignment);
    if (address >= end || end - address < bytes) continue;
    free_.erase(it);
    if (begin < address) free_.emplace(begin, address);
    if (address + bytes < end) free_.emplace(address + bytes, end);
    return address;
  }
  return std::nullopt;
}

void FreeRanges::give_back(std::uint64_t address, std::uint64_t bytes) {
  auto next = free_.upper_bound(address);
  std::uint64_t end = address + bytes;
  if (next != free_.end() && next->first == end) {
    end = next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin() && std::prev(next)->second == address) {
    std::prev(next)->second = end;
  } else {
    free_.emplace(address, end);
  }
}

AddressSpace::AddressSpace(int device_count) {
  for (int device = 0; device <= device_count; ++device) {
    const bool is_managed = device == device_count;
    const std::uint64_t begin = is_managed ? layout().managed_base : Model::device_base(device);
    const std::uint64_t bytes = is_managed ? layout().managed_bytes : layout().device_stride;
    if (!reserve(begin, bytes, MAP_FIXED_NOREPLACE)) {
      const std::string reason = std::strerror(errno);
      for (int mapped = 0; mapped < device; ++mapped)
        munmap(pointer(Model::device_base(mapped)), layout().device_stride);
      throw std::runtime_error("simulated GPU: cannot reserve the address range at " + std::to_string(begin) + ": " +
                               reason + "; only one model may exist in a process, and RLIMIT_AS must be unlimited");
    }
    spaces_.emplace_back(begin, begin + bytes);
  }
}

AddressSpace::~AddressSpace() {
  for (std::size_t device = 0; device + 1 < spaces_.size(); ++device) {
    munmap(pointer(Model::device_base(static_cast<int>(device))), layout().device_stride);
  }
  munmap(pointer(layout().managed_base), layout().managed_bytes);
}

AddressSpace::Space& AddressSpace::space_of(const Allocation& allocation) {
  return allocation.kind == MemoryKind::kManaged ? spaces_.back()
                                                 : spaces_[static_cast<std::size_t>(allocation.device)];
}

// Mappings change by whole chunks: neighbours then merge into few kernel mappings, and a live small allocation cannot
// lose its page to a freed one.
bool AddressSpace::use_chunks(Space& space, std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t first = address / kBlockBytes * kBlockBytes;
  if (mprotect(pointer(first), round_up(address + bytes - first, kBlockBytes), PROT_READ | PROT_WRITE) != 0)
    return false;
  if (bytes >= kBlockBytes) {
    space.chunks += bytes / kBlockBytes;
    return true;
  }
  for (std::uint64_t chunk = first; chunk < address + bytes; chunk += kBlockBytes) {
    if (space.sharers[chunk]++ == 0) ++space.chunks;
  }
  return true;
}

void AddressSpace::drop_chunks(Space& space, std::uint64_t address, std::uint64_t bytes) {
  // Mapping anew gives the pages back and makes any later access fault.
  if (bytes >= kBlockBytes) {
    space.chunks -= bytes / kBlockBytes;
    reserve(address, bytes, MAP_FIXED);
    return;
  }
  for (std::uint64_t chunk = address / kBlockBytes * kBlockBytes; chunk < address + bytes; chunk += kBlockBytes) {
    const auto sharers = space.sharers.find(chunk);
    if (--sharers->second != 0) continue;
    space.sharers.erase(sharers);
    --space.chunks;
    reserve(chunk, kBlockBytes, MAP_FIXED);
  }
}

std::optional<std::uint64_t> AddressSpace::allocate(MemoryKind kind, int device, std::uint64_t bytes) {
  const Footprint need = footprint(kind, bytes);
  if (need.bytes < bytes) return std::nullopt;  // rounding wrapped around
  Allocation allocation{.address = 0, .bytes = bytes, .kind = kind, .device = device};
  Space& space = space_of(allocation);
  const auto address = space.ranges.take(need.bytes, need.alignment);
  if (!address) return std::nullopt;
  if (!use_chunks(space, *address, need.bytes)) {
    space.ranges.give_back(*address, need.bytes);
    return std::nullopt;
  }
  allocation.address = *address;
  allocations_.emplace(*address, allocation);
  return address;
}

void AddressSpace::release(std::uint64_t address) {
  const auto it = allocations_.find(address);
  const Footprint held = footprint(it->second.kind, it->second.bytes);
  Space& space = space_of(it->second);
  drop_chunks(space, address, held.bytes);
  space.ranges.give_back(address, held.bytes);
  allocations_.erase(it);
}

const Allocation* AddressSpace::find(std::uint64_t address) const {
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) return nullptr;
  const Allocation& allocation = std::prev(it)->second;
  return address - allocation.address < allocation.bytes ? &allocation : nullptr;
}

const Allocation* AddressSpace::find(std::uint64_t address, std::uint64_t bytes) const {
  const Allocation* allocation = find(address);
  const bool fits = allocation != nullptr && bytes <= allocation->bytes - (address - allocation->address);
  return fits ? allocation : nullptr;
}

bool AddressSpace::is_ours(std::uint64_t address) {
  const auto is_in = [&](std::uint64_t begin, std::uint64_t bytes) { return address - begin < bytes; };
  return is_in(layout().device_base, layout().managed_base - layout().device_base) ||
         is_in(layout().managed_base, layout().managed_bytes);
}

std::uint32_t AddressSpace::regions_in_core(std::uint64_t address, std::uint64_t bytes) {
  const auto in_core = pages_in_core(address, bytes);
  std::uint32_t regions = 0;
  for (std::size_t page = 0; page < in_core.size(); ++page) {
    if ((in_core[page] & 1U) != 0) regions |= 1U << (page * kPageBytes / kRegionBytes);
  }
  return regions;
}

void AddressSpace::poison(std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t first_page = address / kPageBytes * kPageBytes;
  const auto in_core = pages_in_core(first_page, address + bytes - first_page);
  for (std::size_t page = 0; page < in_core.size(); ++page) {
    if ((in_core[page] & 1U) == 0) continue;
    const std::uint64_t begin = std::max(address, first_page + page * kPageBytes);
    const std::uint64_t end = std::min(address + bytes, first_page + (page + 1) * kPageBytes);
    std::memset(pointer(begin), kPoisonByte, end - begin);
  }
}

}  // namespace hmshim::simgpu::machine

namespace hmshim::simgpu {

std::uint64_t Model::device_base(int device) {
  return machine::layout().device_base + static_cast<std::uint64_t>(device) * machine::layout().device_stride;
}

std::uint64_t Model::managed_base() { return machine::layout().managed_base; }

}  // namespace hmshim::simgpu
