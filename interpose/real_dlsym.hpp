// The dlsym that hmshim's own stands in front of: that of the next preload library which wraps it, else the C
// library's.
#pragma once

namespace hmshim::interpose {

using Dlsym = void* (*)(void* handle, const char* name);

// Found at the first call, without a lock: every thread finds the same. Never null.
[[nodiscard]] Dlsym real_dlsym() noexcept;

}  // namespace hmshim::interpose
