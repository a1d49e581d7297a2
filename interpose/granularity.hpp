// Whether the framework in this process is told to allocate tensor by tensor, which must happen before it is loaded: by
// the variables that PyTorch's allocators read (getenv.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hmshim::interpose {

enum class Granularity : std::uint8_t {
  Tensor,   // backend:cudaMallocAsync: one allocation a tensor, with its stream, served by our pool
  Segment,  // the framework's own allocator, which carves tensors out of few large allocations
  Auto,     // Tensor, unless the user's own variables say otherwise
};

[[nodiscard]] std::string_view to_string(Granularity granularity) noexcept;

struct GranularityChoice {
  Granularity granularity = Granularity::Segment;  // never Auto
  std::string why = "not Python";  // short enough not to be allocated: made while the process is being loaded
  std::vector<std::pair<std::string, std::string>> variables;  // as this process is to see them; nothing else changes
  std::array<std::string, 2> found{};                          // what PyTorch's variables were when it was made
};

// From what the user wants and has set. Keys that are there stay there.
[[nodiscard]] GranularityChoice choose_granularity(Granularity wanted, const char* const* environment);

// Once, while the process is being loaded and has one thread: chooses by the environment. Only in a Python interpreter:
// other programs rarely host PyTorch. Not with HMSHIM_DISABLE, HMSHIM_POLICY=off or options that make no sense.
void apply_granularity() noexcept;
// What it chose, or what was chosen since.
[[nodiscard]] const GranularityChoice& granularity_of_process() noexcept;
// The value that was chosen for a variable; null for all others. Where the program has changed its variables, the
// choice is made again by what they are now. Any thread that may call getenv; calls no library function before a choice
// was made.
[[nodiscard]] char* allocator_variable(const char* name) noexcept;

}  // namespace hmshim::interpose
