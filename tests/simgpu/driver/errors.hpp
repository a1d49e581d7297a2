// The errors of the driver by name, number and text.
#pragma once

#include <optional>
#include <string_view>

namespace hmshim::simgpu {

struct ErrorText {
  const char* name;
  const char* text;
};

// nullptr members for a number that is no CUresult.
[[nodiscard]] ErrorText error_text(int code) noexcept;
// By name or decimal number; nothing for success and for what no CUresult is.
[[nodiscard]] std::optional<int> error_code(std::string_view name_or_number) noexcept;

}  // namespace hmshim::simgpu
