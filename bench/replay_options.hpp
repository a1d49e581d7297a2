// What `replay` is told on its command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hmshim::bench {

extern const char* const kReplayUsage;

// How the guest gets memory for each tensor.
enum class Allocator : std::uint8_t {
  Async,  // cuMemAllocAsync and cuMemFreeAsync, as PyTorch with backend:cudaMallocAsync
  Sync,   // cuMemAlloc and cuMemFree: every free waits for the device
};

struct ReplayOptions {
  std::string trace;
  std::string policy;
  std::string device;  // a profile: a name or a path
  // One of the two.
  std::optional<double> ratio;        // device memory = peak of live bytes / ratio, unlimited host memory
  std::optional<std::string> budget;  // HMSHIM_DEVICE_BUDGET on the device as its profile describes it
  std::uint32_t iterations = 10;
  std::string field = "dur_us";
  Allocator allocator = Allocator::Async;
  std::optional<std::string> bounds;  // JSON file of lower bounds
  bool as_json = false;
  bool is_guest = false;  // this process is the one that plays the trace
};

// Throws std::invalid_argument naming the argument and what would be right.
[[nodiscard]] ReplayOptions parse_replay_options(int argc, char** argv);

}  // namespace hmshim::bench
