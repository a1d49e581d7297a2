// Who calls: the library that a return address lies in. Some libraries need real device memory, because they share it
// with other processes or devices by handles that the driver refuses for managed memory.
//
// Only the direct caller is known. A library that allocates through a shared CUDA runtime appears as that runtime;
// NCCL and NVSHMEM carry a runtime of their own, UCX asks the driver itself.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/report.hpp"

namespace hmshim::interpose {

// The file name of the object that the address lies in; "" for the program itself and for what is in no object. Takes
// no lock of the loader that a dlopen under way on another thread holds while constructors run.
[[nodiscard]] std::string library_of(const void* address);

// Whether a library's file name is `name`, with or without its version: libnccl is libnccl.so and libnccl.so.2.
[[nodiscard]] bool is_named(std::string_view library, std::string_view name) noexcept;

class Callers {
 public:
  // Libraries whose allocations stay on the device, besides those that are known to need it.
  explicit Callers(std::vector<std::string> excluded) : excluded_(std::move(excluded)) {}

  // Whether the call that returns to `address` is of such a library. Looked up once per address.
  [[nodiscard]] bool is_excluded(const void* address);

  // For the report: an allocation that stayed on the device for its caller's sake; a handle that the driver refused.
  // The latter is true the first time for the library.
  void note_excluded(const void* address, std::uint64_t bytes);
  bool note_refused(const void* address, std::uint64_t bytes);
  [[nodiscard]] std::vector<CallerTally> tallies() const;

 private:
  static constexpr std::size_t kSlots = 256;

  [[nodiscard]] CallerTally& tally_of(const void* address);

  const std::vector<std::string> excluded_;
  // Answers by address: twice the address, plus one when it is excluded. A slot holds the last address that maps to it.
  std::array<std::atomic<std::uint64_t>, kSlots> answers_{};
  mutable std::mutex mutex_;
  std::vector<CallerTally> tallies_;
};

}  // namespace hmshim::interpose
