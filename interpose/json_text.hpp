// Text for the JSON that the library writes.
#pragma once

#include <string>
#include <string_view>

namespace hmshim::interpose {

// As a JSON string, quotes included. Bytes above ASCII stay as they are.
[[nodiscard]] std::string quoted(std::string_view text);

}  // namespace hmshim::interpose
