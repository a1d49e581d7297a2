// The options of a process, read once from its environment. Rows, defaults and grammar: options.def.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/granularity.hpp"
#include "interpose/log.hpp"

namespace hmshim::interpose {

inline constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// A size, or a share of a whole that is known only later.
struct Amount {
  std::uint64_t value = 0;  // bytes (kNoLimit for "none"), or percent in 0…100
  bool is_percent = false;

  [[nodiscard]] constexpr std::uint64_t of(std::uint64_t whole_bytes) const noexcept {
    return is_percent ? whole_bytes / 100 * value + whole_bytes % 100 * value / 100 : value;
  }
  bool operator==(const Amount&) const = default;
};

using Names = std::vector<std::string>;

// What the guest is told about memory.
enum class MemInfo : std::uint8_t { Virtual, Device };

struct Config {
#define OPTION(field, name, type, default_value, values, sentence) type field{};
#include "interpose/options.def"
#undef OPTION

  // One line each, for the log. With any error the policy must stay off: a limit that was misread is worse than none.
  std::vector<std::string> errors;
  std::vector<std::string> warnings;  // HMSHIM_ names that are no options
};

// `environment` is an array as in environ(7); null stands for an empty one. Fields whose value is in error hold their
// default, as those whose variable is unset or empty do. HMSHIM_TEST_* belongs to the tests, HMSHIM_LIB to
// scripts/hmshim.
[[nodiscard]] Config parse(const char* const* environment);

// The rank of this process as its launcher says (RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID, PMI_RANK: the first that is
// a number), "0" without a launcher.
[[nodiscard]] std::string rank_of(const char* const* environment);

// The path with %p, %r and %% replaced.
[[nodiscard]] std::string expand_path(std::string_view pattern, int pid, std::string_view rank);

}  // namespace hmshim::interpose
