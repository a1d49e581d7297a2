#include "interpose/tensor_maps.hpp"

#include <cstring>
#include <span>

namespace hmshim::interpose {

namespace {

constexpr std::size_t kWords = sizeof(CUtensorMap) / sizeof(std::uint64_t);
constexpr std::size_t kAlignment = alignof(CUtensorMap);
constexpr unsigned kTagShift = 53;  // 57-bit addresses in units of 16 bytes
constexpr unsigned kUnitShift = 4;

std::array<std::uint64_t, kWords> words_of(const void* map) noexcept {
  std::array<std::uint64_t, kWords> words;
  std::memcpy(words.data(), map, sizeof words);
  return words;
}

std::uint64_t hash_of(const void* map) noexcept {
  std::uint64_t hash = 0;
  for (const std::uint64_t word : words_of(map)) hash = (hash ^ word ^ hash >> 29) * 0x9E3779B97F4A7C15ULL;
  return hash ^ hash >> 32;
}

std::uint64_t tag_of(std::uint64_t hash) noexcept { return hash >> kTagShift << kTagShift; }

}  // namespace

void TensorMaps::learn(const CUtensorMap& map, const void* address) noexcept {
  const auto target = reinterpret_cast<std::uintptr_t>(address);
  for (const std::uint64_t word : words_of(&map)) {
    if (word == target) return;
  }
  const std::uint64_t hash = hash_of(&map);
  slots_[hash % kSlots].store(tag_of(hash) | target >> kUnitShift, std::memory_order_relaxed);
  are_known_.store(true, std::memory_order_relaxed);
}

std::uint64_t TensorMaps::find(const void* map) const noexcept {
  const std::uint64_t hash = hash_of(map);
  const std::uint64_t slot = slots_[hash % kSlots].load(std::memory_order_relaxed);
  return (slot ^ tag_of(hash)) >> kTagShift == 0 ? slot << (64 - kTagShift) >> (64 - kTagShift) << kUnitShift : 0;
}

void TensorMaps::collect(const ParamLayout& layout, void** kernel_params, void** extra,
                         const uvm::AllocationTable& table, Touched& out) const noexcept {
  for_each_param(layout, kernel_params, extra, [&](const void* data, std::uint32_t words) {
    const std::size_t bytes = std::size_t{words} * sizeof(std::uint64_t);
    // A descriptor is aligned to 64 bytes, and so is every struct that has one. Where the parameter lies says nothing:
    // 48 bytes behind a constant bank's 528 are aligned on the device (nvcc 13, sm_90).
    for (std::size_t at = 0; at + sizeof(CUtensorMap) <= bytes; at += kAlignment) {
      const std::uint64_t address = find(static_cast<const unsigned char*>(data) + at);
      if (const uvm::Hit hit = table.find(address); hit.extent != policy::kNoExtent) out.add(hit);
    }
  });
}

}  // namespace hmshim::interpose
