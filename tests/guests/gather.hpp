#pragma once
// Which rows gather.cu asks for.
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define GUEST_BOTH __host__ __device__
#else
#define GUEST_BOTH
#endif

namespace guests {

constexpr unsigned kRowFloats = 128;  // 512 bytes
constexpr unsigned kGathered = 64;    // rows of a launch

/// Row number `index` of a launch: a hash (Knuth, The Art of Computer Programming 6.4, multiplicative hashing).
GUEST_BOTH inline std::size_t row_of(unsigned seed, unsigned index, std::size_t rows) {
  const std::uint64_t mixed = (std::uint64_t{seed} * kGathered + index + 1) * 0x9E3779B97F4A7C15ULL;
  return static_cast<std::size_t>((mixed >> 32) % rows);
}

}  // namespace guests
