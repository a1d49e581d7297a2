// The C library's dlsym, behind hmshim's own and behind that of any preload library after it.
#pragma once

namespace hmshim::interpose {

using Dlsym = void* (*)(void* handle, const char* name);

// Found at the first call, without a lock: every thread finds the same. Never null.
[[nodiscard]] Dlsym real_dlsym() noexcept;

}  // namespace hmshim::interpose
