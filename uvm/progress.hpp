// Words in pinned memory through which the guest's streams and the library tell each other how far they are: a stream
// reports the steps that it has finished, and waits at a gate until steps have been opened.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "uvm/driver_api.hpp"

namespace hmshim::uvm {

class Progress {
 public:
  static constexpr std::size_t kStreams = 8;
  using Words = std::array<std::uint32_t, kStreams>;

  explicit Progress(const DriverApi& api) : api_(api) {}
  // The page is left to the context, with which it goes: a stream may still wait for a word.
  ~Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Whether the driver has what reporting and waiting takes.
  [[nodiscard]] static bool is_supported(const DriverApi& api) noexcept;
  // Pins the page, in the current context.
  [[nodiscard]] CUresult allocate() noexcept;

  // Steps are counted from 0 over the life of the process and may pass 2^32: the driver compares cyclically.
  [[nodiscard]] CUresult report(CUstream stream, std::size_t index, std::uint64_t steps) const noexcept;
  [[nodiscard]] CUresult wait_until_open(CUstream stream, std::uint64_t steps) const noexcept;

  // The host's side.
  void open(std::uint64_t steps) noexcept;
  [[nodiscard]] std::span<const std::uint32_t> words() const noexcept { return {page_, kStreams}; }
  [[nodiscard]] Words read() const noexcept;
  // `word` as the count nearest to `expected`.
  [[nodiscard]] static std::uint64_t widen(std::uint32_t word, std::uint64_t expected) noexcept {
    return expected + static_cast<std::uint64_t>(static_cast<std::int64_t>(
                          static_cast<std::int32_t>(word - static_cast<std::uint32_t>(expected))));
  }

 private:
  // The gate on a cache line of its own: the device polls it.
  static constexpr std::size_t kGateWord = 32;

  const DriverApi& api_;
  std::uint32_t* page_ = nullptr;
};

// `streams` has bit i for stream i.
template <class Work>
void for_each_stream(std::uint8_t streams, Work&& work) {
  for (std::size_t i = 0; i < Progress::kStreams; ++i) {
    if ((streams >> i & 1) != 0) work(i);
  }
}

}  // namespace hmshim::uvm
