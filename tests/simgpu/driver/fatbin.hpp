// What a driver reads in a program image: the kernels of each cubin and the layout of their parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hmshim::simgpu {

struct Parameter {
  std::uint32_t offset_bytes = 0;
  std::uint32_t size_bytes = 0;
};

struct KernelImage {
  std::string name;                   // mangled
  std::vector<Parameter> parameters;  // by ordinal
};

struct GlobalImage {
  std::string name;  // mangled
  std::uint64_t size_bytes = 0;
  std::vector<std::byte> initial;  // empty: zero-initialised
};

struct ProgramImage {
  std::vector<KernelImage> kernels;  // sorted by name
  std::vector<GlobalImage> globals;  // sorted by name
};

enum class ImageError : std::uint8_t {
  None,
  NotAnImage,      // neither fatbin, wrapper nor ELF64
  Truncated,       // an offset or size points outside of what contains it
  BadCompression,  // the payload does not decompress to the size its header states
  NoBinary,        // a fatbin without an ELF entry, or PTX alone: the simulated driver has no compiler
};

[[nodiscard]] const char* to_string(ImageError error) noexcept;

// A cubin of known size. Reads nothing outside `bytes`, whatever they hold.
[[nodiscard]] ImageError decode_cubin(std::span<const std::byte> bytes, ProgramImage& program);

// A fatbin container (header 0xba55ed50) of known size: decodes the ELF entry with the highest sm not above `sm`, else
// the highest there is. Kernels of all such entries of that sm are joined (relocatable device code has several).
[[nodiscard]] ImageError decode_fatbin(std::span<const std::byte> bytes, std::uint32_t sm, ProgramImage& program);

// What cuModuleLoadData and cuLibraryLoadData are given: a pointer without a size to a fatbin wrapper (0x466243b1), a
// fatbin, a cubin or PTX text. The sizes in the headers are trusted, as the real driver must.
[[nodiscard]] ImageError decode_image(const void* image, std::uint32_t sm, ProgramImage& program);

}  // namespace hmshim::simgpu
