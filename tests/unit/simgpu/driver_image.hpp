// Program images made by hand, to the layouts that nvcc writes.
#pragma once

#include <elf.h>
#include <lz4.h>
#include <zstd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/simgpu/driver/fatbin.hpp"

namespace driver_test {

using Image = std::vector<std::byte>;
using hmshim::simgpu::Parameter;

inline void append(Image& image, const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  image.insert(image.end(), begin, begin + bytes);
}
template <class T>
void append(Image& image, T value) {
  append(image, &value, sizeof value);
}

// A cubin with one kernel.
inline Image make_cubin(const std::string& kernel, const std::vector<Parameter>& parameters) {
  Image info;
  append<std::uint32_t>(info, 0x00000a02);  // a record without payload, to be skipped
  // Newest toolkits write the parameters last to first.
  for (std::size_t i = parameters.size(); i-- > 0;) {
    append<std::uint8_t>(info, 4);
    append<std::uint8_t>(info, 0x17);
    append<std::uint16_t>(info, 12);
    append<std::uint32_t>(info, 0);
    append(info, static_cast<std::uint16_t>(i));
    append(info, static_cast<std::uint16_t>(parameters[i].offset_bytes));
    append<std::uint32_t>(info, parameters[i].size_bytes << 18 | 0x1f000);
  }
  std::string names(1, '\0');
  const auto add_name = [&names](const std::string& name) {
    const auto at = static_cast<std::uint32_t>(names.size());
    names += name + '\0';
    return at;
  };
  Elf64_Shdr sections[4] = {};
  sections[1].sh_name = add_name(".text." + kernel);
  sections[1].sh_type = SHT_PROGBITS;
  sections[2].sh_name = add_name(".nv.info." + kernel);
  sections[2].sh_type = SHT_LOPROC;
  sections[3].sh_name = add_name(".shstrtab");
  sections[3].sh_type = SHT_STRTAB;

  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 4;
  header.e_shstrndx = 3;
  header.e_shoff = sizeof header;
  std::uint64_t at = sizeof header + sizeof sections;
  sections[1].sh_offset = at;
  sections[2].sh_offset = at;
  sections[2].sh_size = info.size();
  sections[3].sh_offset = at + info.size();
  sections[3].sh_size = names.size();

  Image image;
  append(image, header);
  append(image, sections, sizeof sections);
  append(image, info.data(), info.size());
  append(image, names.data(), names.size());
  return image;
}

enum class Compression : std::uint64_t { None = 0, Lz4 = 0x2000, Zstd = 0x8000 };

// One entry of a fatbin. `raw_bytes` may lie about the size.
inline Image make_entry(const Image& cubin, std::uint32_t sm, Compression compression, std::uint64_t raw_bytes,
                        std::uint16_t kind = 2) {
  Image payload = cubin;
  std::uint32_t compressed_bytes = 0;
  if (compression == Compression::Zstd) {
    payload.resize(ZSTD_compressBound(cubin.size()));
    payload.resize(ZSTD_compress(payload.data(), payload.size(), cubin.data(), cubin.size(), 3));
  } else if (compression == Compression::Lz4) {
    payload.resize(static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(cubin.size()))));
    payload.resize(static_cast<std::size_t>(
        LZ4_compress_default(reinterpret_cast<const char*>(cubin.data()), reinterpret_cast<char*>(payload.data()),
                             static_cast<int>(cubin.size()), static_cast<int>(payload.size()))));
  }
  if (compression != Compression::None) compressed_bytes = static_cast<std::uint32_t>(payload.size());
  payload.resize((payload.size() + 7) / 8 * 8);  // nvcc pads to 8

  Image entry;
  append(entry, kind);
  append<std::uint16_t>(entry, 0x101);
  append<std::uint32_t>(entry, 64);
  append<std::uint64_t>(entry, payload.size());
  append(entry, compressed_bytes);
  append<std::uint64_t>(entry, 0);
  append(entry, sm);
  append<std::uint64_t>(entry, 0);
  append(entry, compression);
  append<std::uint64_t>(entry, 0);
  append(entry, compression == Compression::None ? std::uint64_t{0} : raw_bytes);
  append(entry, payload.data(), payload.size());
  return entry;
}

inline Image make_fatbin(const std::vector<Image>& entries) {
  Image body;
  for (const Image& entry : entries) append(body, entry.data(), entry.size());
  Image fatbin;
  append<std::uint32_t>(fatbin, 0xba55ed50);
  append<std::uint16_t>(fatbin, 1);
  append<std::uint16_t>(fatbin, 16);
  append<std::uint64_t>(fatbin, body.size());
  append(fatbin, body.data(), body.size());
  return fatbin;
}

}  // namespace driver_test
