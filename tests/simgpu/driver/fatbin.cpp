#include "tests/simgpu/driver/fatbin.hpp"

#include <elf.h>
#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

namespace hmshim::simgpu {
namespace {

using Bytes = std::span<const std::byte>;

// The layout of NVIDIA's containers as nvcc 13.0 writes them, observed on its output.
constexpr std::uint32_t kWrapperMagic = 0x466243b1;
constexpr std::uint32_t kFatbinMagic = 0xba55ed50;
constexpr std::uint16_t kKindElf = 2;
constexpr std::uint64_t kFlagLz4 = 0x2000;
constexpr std::uint64_t kFlagZstd = 0x8000;
constexpr std::uint8_t kInfoFormatSized = 4;  // the 16 bits after the attribute are the size of a payload
constexpr std::uint8_t kInfoAttributeParameter = 0x17;
constexpr std::uint32_t kParameterSizeShift = 18;
// A cubin beyond this is junk, not a program: cuBLAS's largest is under 100 MiB.
constexpr std::uint64_t kMaxRawBytes = std::uint64_t{1} << 30;

struct Wrapper {
  std::uint32_t magic;
  std::uint32_t version;
  const void* data;
  void* file_name;
};

struct FatbinHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t payload_bytes;
};

struct EntryHeader {
  std::uint16_t kind;
  std::uint16_t version;
  std::uint32_t header_bytes;
  std::uint64_t payload_bytes;
  std::uint32_t compressed_bytes;  // 0: stored raw
  std::uint32_t unknown_20[2];
  std::uint32_t sm;
  std::uint32_t unknown_32[2];
  std::uint64_t flags;
  std::uint64_t unknown_48;
  std::uint64_t raw_bytes;
};
static_assert(offsetof(EntryHeader, sm) == 28 && offsetof(EntryHeader, flags) == 40 && sizeof(EntryHeader) == 64);

struct InfoRecord {
  std::uint8_t format;
  std::uint8_t attribute;
  std::uint16_t value_or_bytes;
};

struct ParameterRecord {
  std::uint32_t index;
  std::uint16_t ordinal;
  std::uint16_t offset_bytes;
  std::uint32_t packed;
};

std::optional<Bytes> slice(Bytes bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || size > bytes.size() - offset) return std::nullopt;
  return bytes.subspan(offset, size);
}

template <class T>
std::optional<T> read(Bytes bytes, std::uint64_t offset) {
  const auto found = slice(bytes, offset, sizeof(T));
  if (!found) return std::nullopt;
  T value;
  std::memcpy(&value, found->data(), sizeof(T));
  return value;
}

std::string_view string_at(Bytes table, std::uint64_t offset) {
  if (offset >= table.size()) return {};
  const char* begin = reinterpret_cast<const char*>(table.data()) + offset;
  return {begin, strnlen(begin, table.size() - offset)};
}

// A cubin's sections, each checked to lie within the file.
class Elf {
 public:
  static std::optional<Elf> open(Bytes bytes) {
    const auto header = read<Elf64_Ehdr>(bytes, 0);
    if (!header || header->e_shentsize != sizeof(Elf64_Shdr)) return std::nullopt;
    Elf elf(bytes);
    for (std::uint64_t i = 0; i < header->e_shnum; ++i) {
      const auto section = read<Elf64_Shdr>(bytes, header->e_shoff + i * sizeof(Elf64_Shdr));
      if (!section) return std::nullopt;
      if (section->sh_type != SHT_NOBITS && !slice(bytes, section->sh_offset, section->sh_size)) return std::nullopt;
      elf.sections_.push_back(*section);
    }
    if (header->e_shstrndx >= elf.sections_.size()) return std::nullopt;
    elf.names_ = elf.content(elf.sections_[header->e_shstrndx]);
    return elf;
  }

  [[nodiscard]] const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  [[nodiscard]] std::string_view name(const Elf64_Shdr& section) const { return string_at(names_, section.sh_name); }
  [[nodiscard]] Bytes content(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS) return {};
    return bytes_.subspan(section.sh_offset, section.sh_size);
  }

 private:
  explicit Elf(Bytes bytes) : bytes_(bytes) {}
  Bytes bytes_;
  Bytes names_;
  std::vector<Elf64_Shdr> sections_;
};

ImageError read_parameters(Bytes info, std::vector<Parameter>& parameters) {
  std::vector<std::optional<Parameter>> by_ordinal;
  for (std::uint64_t at = 0; at < info.size();) {
    const auto record = read<InfoRecord>(info, at);
    if (!record) return ImageError::Truncated;
    at += sizeof(InfoRecord);
    if (record->format != kInfoFormatSized) continue;
    const auto payload = slice(info, at, record->value_or_bytes);
    if (!payload) return ImageError::Truncated;
    at += record->value_or_bytes;
    if (record->attribute != kInfoAttributeParameter) continue;
    const auto parameter = read<ParameterRecord>(*payload, 0);
    if (!parameter) return ImageError::Truncated;
    if (by_ordinal.size() <= parameter->ordinal) by_ordinal.resize(std::size_t{parameter->ordinal} + 1);
    by_ordinal[parameter->ordinal] = Parameter{parameter->offset_bytes, parameter->packed >> kParameterSizeShift};
  }
  for (const auto& parameter : by_ordinal) {
    if (!parameter) return ImageError::Truncated;  // a gap in the ordinals: records are missing
    parameters.push_back(*parameter);
  }
  return ImageError::None;
}

void read_globals(const Elf& elf, ProgramImage& program) {
  for (const Elf64_Shdr& table : elf.sections()) {
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= elf.sections().size()) continue;
    const Bytes symbols = elf.content(table);
    const Bytes strings = elf.content(elf.sections()[table.sh_link]);
    for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols.size(); at += sizeof(Elf64_Sym)) {
      const Elf64_Sym symbol = *read<Elf64_Sym>(symbols, at);
      if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_shndx >= elf.sections().size()) continue;
      const Elf64_Shdr& home = elf.sections()[symbol.st_shndx];
      const std::string_view home_name = elf.name(home);
      if (!home_name.starts_with(".nv.global") && !home_name.starts_with(".nv.constant3")) continue;
      if (symbol.st_size == 0 || symbol.st_size > kMaxRawBytes) continue;
      GlobalImage global{std::string(string_at(strings, symbol.st_name)), symbol.st_size, {}};
      if (const auto initial = slice(elf.content(home), symbol.st_value, symbol.st_size)) {
        global.initial.assign(initial->begin(), initial->end());
      }
      program.globals.push_back(std::move(global));
    }
  }
}

void sort_by_name(auto& items) {
  std::ranges::sort(items, {}, [](const auto& item) { return item.name; });
  const auto same_name = [](const auto& a, const auto& b) { return a.name == b.name; };
  items.erase(std::unique(items.begin(), items.end(), same_name), items.end());
}

ImageError append_cubin(Bytes bytes, ProgramImage& program) {
  if (bytes.size() < SELFMAG || std::memcmp(bytes.data(), ELFMAG, SELFMAG) != 0) return ImageError::NotAnImage;
  const auto elf = Elf::open(bytes);
  if (!elf) return ImageError::Truncated;
  constexpr std::string_view kText = ".text.";
  constexpr std::string_view kInfo = ".nv.info.";
  for (const Elf64_Shdr& section : elf->sections()) {
    const std::string_view name = elf->name(section);
    if (!name.starts_with(kInfo)) continue;
    const std::string_view kernel = name.substr(kInfo.size());
    const bool has_code = std::ranges::any_of(elf->sections(), [&](const Elf64_Shdr& other) {
      const std::string_view text = elf->name(other);
      return text.starts_with(kText) && text.substr(kText.size()) == kernel;
    });
    if (!has_code) continue;
    KernelImage image{std::string(kernel), {}};
    if (const ImageError error = read_parameters(elf->content(section), image.parameters); error != ImageError::None) {
      return error;
    }
    program.kernels.push_back(std::move(image));
  }
  read_globals(*elf, program);
  sort_by_name(program.kernels);
  sort_by_name(program.globals);
  return ImageError::None;
}

ImageError append_entry(const EntryHeader& entry, Bytes payload, ProgramImage& program) {
  if ((entry.flags & (kFlagLz4 | kFlagZstd)) == 0) return append_cubin(payload, program);
  // The payload is padded; decoders want the exact size.
  const auto compressed = slice(payload, 0, entry.compressed_bytes);
  if (!compressed) return ImageError::Truncated;
  if (entry.raw_bytes > kMaxRawBytes) return ImageError::BadCompression;
  std::vector<std::byte> raw(entry.raw_bytes);
  bool whole = false;
  if ((entry.flags & kFlagZstd) != 0) {
    whole = ZSTD_decompress(raw.data(), raw.size(), compressed->data(), compressed->size()) == raw.size();
  } else if (compressed->size() <= std::numeric_limits<int>::max()) {
    const int got =
        LZ4_decompress_safe(reinterpret_cast<const char*>(compressed->data()), reinterpret_cast<char*>(raw.data()),
                            static_cast<int>(compressed->size()), static_cast<int>(raw.size()));
    whole = got >= 0 && static_cast<std::uint64_t>(got) == raw.size();
  }
  return whole ? append_cubin(raw, program) : ImageError::BadCompression;
}

// The bytes from an ELF header to the end of its last section, for images that come as a bare pointer.
std::uint64_t elf_bytes(const void* image) {
  const auto* begin = static_cast<const std::byte*>(image);
  Elf64_Ehdr header;
  std::memcpy(&header, begin, sizeof header);
  std::uint64_t end = header.e_shoff + std::uint64_t{header.e_shnum} * header.e_shentsize;
  for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, begin + header.e_shoff + i * sizeof section, sizeof section);
    if (section.sh_type != SHT_NOBITS) end = std::max(end, section.sh_offset + section.sh_size);
  }
  return end;
}

}  // namespace

const char* to_string(ImageError error) noexcept {
  switch (error) {
    case ImageError::None:
      return "none";
    case ImageError::NotAnImage:
      return "neither a fatbin nor a cubin";
    case ImageError::Truncated:
      return "a header points outside of the image";
    case ImageError::BadCompression:
      return "a compressed entry does not give the bytes its header promises";
    case ImageError::NoBinary:
      return "no cubin inside (the simulated driver does not compile PTX)";
  }
  return "unknown";
}

ImageError decode_cubin(Bytes bytes, ProgramImage& program) {
  program = {};
  return append_cubin(bytes, program);
}

ImageError decode_fatbin(Bytes bytes, std::uint32_t sm, ProgramImage& program) {
  program = {};
  const auto header = read<FatbinHeader>(bytes, 0);
  if (!header || header->magic != kFatbinMagic) return ImageError::NotAnImage;
  const auto body = slice(bytes, header->header_bytes, header->payload_bytes);
  if (!body) return ImageError::Truncated;

  struct Candidate {
    EntryHeader header;
    Bytes payload;
  };
  std::vector<Candidate> cubins;
  for (std::uint64_t at = 0; at < body->size();) {
    const auto entry = read<EntryHeader>(*body, at);
    if (!entry || entry->header_bytes < sizeof(EntryHeader)) return ImageError::Truncated;
    const auto payload = slice(*body, at + entry->header_bytes, entry->payload_bytes);
    if (!payload) return ImageError::Truncated;
    if (entry->kind == kKindElf) cubins.push_back({*entry, *payload});
    at += entry->header_bytes + entry->payload_bytes;
  }
  if (cubins.empty()) return ImageError::NoBinary;

  // Highest sm that runs on the device, else the lowest above: parameter layouts do not differ between architectures.
  const auto rank = [sm](const Candidate& cubin) {
    return cubin.header.sm <= sm ? std::int64_t{cubin.header.sm} : -std::int64_t{cubin.header.sm};
  };
  const auto best = rank(*std::ranges::max_element(cubins, {}, rank));
  for (const Candidate& cubin : cubins) {
    if (rank(cubin) != best) continue;
    if (const ImageError error = append_entry(cubin.header, cubin.payload, program); error != ImageError::None) {
      program = {};
      return error;
    }
  }
  return ImageError::None;
}

ImageError decode_image(const void* image, std::uint32_t sm, ProgramImage& program) {
  program = {};
  std::uint32_t magic;
  std::memcpy(&magic, image, sizeof magic);
  if (magic == kWrapperMagic) {
    Wrapper wrapper;
    std::memcpy(&wrapper, image, sizeof wrapper);
    if (wrapper.data == nullptr) return ImageError::NotAnImage;
    image = wrapper.data;
    std::memcpy(&magic, image, sizeof magic);
  }
  const auto* begin = static_cast<const std::byte*>(image);
  if (magic == kFatbinMagic) {
    FatbinHeader header;
    std::memcpy(&header, image, sizeof header);
    return decode_fatbin({begin, header.header_bytes + header.payload_bytes}, sm, program);
  }
  if (std::memcmp(image, ELFMAG, SELFMAG) == 0) return append_cubin({begin, elf_bytes(image)}, program);
  // PTX is text: it begins with a comment or a directive.
  const char first = static_cast<char>(*begin);
  return first == '/' || first == '.' ? ImageError::NoBinary : ImageError::NotAnImage;
}

}  // namespace hmshim::simgpu
