// Any bytes as a program image of known size: decoded or refused, never read past their end.
#include <cstdint>
#include <cstring>
#include <memory>

#include "tests/simgpu/driver/fatbin.hpp"

using namespace hmshim::simgpu;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const auto image = std::make_unique<std::byte[]>(bytes);
  std::memcpy(image.get(), data, bytes);
  ProgramImage program;
  static_cast<void>(decode_cubin({image.get(), bytes}, program));
  ProgramImage from_fatbin;
  static_cast<void>(decode_fatbin({image.get(), bytes}, 90, from_fatbin));
  return 0;
}
