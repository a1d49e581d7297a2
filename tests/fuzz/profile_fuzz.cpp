// Any text as a profile: read, or refused with the file, the line and what would be right.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/simgpu/model/profile.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const int file = memfd_create("profile", 0);
  if (file < 0 || write(file, data, bytes) != static_cast<ssize_t>(bytes)) std::abort();
  try {
    static_cast<void>(hmshim::simgpu::load_profile("/proc/self/fd/" + std::to_string(file)));
  } catch (const hmshim::simgpu::ProfileError& error) {
    if (std::string(error.what()).find(':') == std::string::npos) std::abort();
  }
  close(file);
  return 0;
}
