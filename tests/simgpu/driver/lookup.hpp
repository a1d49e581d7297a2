// cuGetProcAddress without the CUDA types: which export answers to (base name, version, stream flavour).
#pragma once

#include <string_view>

namespace hmshim::simgpu {

inline constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED

enum class LookupStatus : unsigned char { Found = 0, SymbolNotFound = 1, VersionNotSufficient = 2 };

struct Lookup {
  void* address;
  LookupStatus status;
};

// The newest ABI of `base` that `version` (1000 * major + 10 * minor) already knows. With `per_thread`, the variant for
// the per-thread default stream where there is one, else the legacy one.
[[nodiscard]] Lookup look_up(std::string_view base, int version, bool per_thread) noexcept;

// What the driver calls its own version: SIMGPU_DRIVER_VERSION, else that of cuda.h. 0 for one that is not valid.
[[nodiscard]] int driver_version() noexcept;

[[nodiscard]] bool is_export(std::string_view symbol) noexcept;

}  // namespace hmshim::simgpu
