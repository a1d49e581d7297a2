// Any layout and any buffer of arguments: nothing is read past the end of what the launch passes.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "interpose/kernel_args.hpp"
#include "interpose/tensor_maps.hpp"

using namespace hmshim::interpose;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static hmshim::uvm::AllocationTable& table = *[] {
    auto* made = new hmshim::uvm::AllocationTable;
    hmshim::uvm::Allocation allocation{.base = 0x7f00'0000'0000, .bytes = 10 * hmshim::policy::kBlockBytes};
    static_cast<void>(made->insert(allocation));
    return made;
  }();
  static TensorMaps tensor_maps;
  if (bytes < 1) return 0;
  const std::size_t count = data[0] % 8;
  ++data, --bytes;
  ParamLayout layout;
  for (std::size_t i = 0; i < count && bytes >= 4; ++i, data += 4, bytes -= 4) {
    std::uint16_t offset, words;
    std::memcpy(&offset, data, sizeof offset);
    std::memcpy(&words, data + 2, sizeof words);
    layout.params.push_back({static_cast<std::uint32_t>(i), offset, words % 513U});
  }
  // Exactly as long as it says, so that one byte too many is found out.
  const auto buffer = std::make_unique<unsigned char[]>(bytes);
  std::memcpy(buffer.get(), data, bytes);
  std::size_t size = bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer.get(), CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  Touched touched;
  collect_launch(layout, nullptr, extra, table, touched);
  tensor_maps.collect(layout, nullptr, extra, table, touched);
  if (touched.extents().size() > hmshim::policy::kMaxTouched) __builtin_trap();
  if (bytes >= sizeof(CUtensorMap)) {
    CUtensorMap map;
    std::memcpy(&map, data, sizeof map);
    tensor_maps.learn(map, reinterpret_cast<void*>(std::uintptr_t{0x7f00'0000'0010}));
  }
  return 0;
}
