// What happens when the library is loaded, before the program begins.
#include "interpose/granularity.hpp"

namespace {

[[gnu::constructor]] void on_load() { hmshim::interpose::apply_granularity(); }

}  // namespace
