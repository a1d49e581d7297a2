// What in this process reaches the driver past the library: looked for when the process ends, for the report.
#pragma once

#include <string>
#include <vector>

namespace hmshim::interpose {

// Files of loaded objects whose references to wrapped functions are bound to the driver's own: libraries loaded with
// RTLD_DEEPBIND, which search themselves and what they need first.
[[nodiscard]] std::vector<std::string> libraries_bound_to_driver();

// How many copies of the driver are mapped. A second one belongs to a namespace of its own (dlmopen), into which no
// preload library goes.
[[nodiscard]] int driver_copies();

}  // namespace hmshim::interpose
