// Tensor map descriptors: opaque, and more so than on a real device, so that nobody gets by with finding the address in
// one. A simulated kernel reads it back with simgpu_tensor_map_address.
#include <cstring>

#include "tests/simgpu/driver/driver.hpp"
#include "tests/simgpu/simgpu.h"

namespace hmshim::simgpu {
namespace {

constexpr std::uint64_t kScramble = 0xA5C3'96E1'7B2D'5F48;

struct Descriptor {
  std::uint64_t scrambled_address;
  std::uint64_t magic;
  std::uint64_t rest[14];
};
static_assert(sizeof(Descriptor) == sizeof(CUtensorMap));

CUresult encode(Call call, CUtensorMap* out, const void* address, cuuint32_t rank, const cuuint64_t* dims) {
  return initialised(call, [=] {
    const auto target = reinterpret_cast<std::uint64_t>(address);
    if (out == nullptr || reinterpret_cast<std::uint64_t>(out) % alignof(CUtensorMap) != 0 || target % 16 != 0 ||
        rank == 0 || rank > 5 || dims == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Descriptor descriptor{.scrambled_address = target ^ kScramble, .magic = kScramble, .rest = {}};
    for (cuuint32_t i = 0; i < rank; ++i) descriptor.rest[i] = dims[i];
    std::memcpy(out, &descriptor, sizeof descriptor);
    return CUDA_SUCCESS;
  });
}

}  // namespace
}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

CUresult cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  return encode(Call::cuTensorMapEncodeTiled, out, address, rank, dims);
}
CUresult cuTensorMapEncodeIm2col(CUtensorMap* out, CUtensorMapDataType, cuuint32_t rank, void* address,
                                 const cuuint64_t* dims, const cuuint64_t*, const int*, const int*, cuuint32_t,
                                 cuuint32_t, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return encode(Call::cuTensorMapEncodeIm2col, out, address, rank, dims);
}
CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  return initialised(Call::cuTensorMapReplaceAddress, [=] {
    if (map == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Descriptor descriptor;
    std::memcpy(&descriptor, map, sizeof descriptor);
    if (descriptor.magic != kScramble) return CUDA_ERROR_INVALID_VALUE;
    descriptor.scrambled_address = reinterpret_cast<std::uint64_t>(address) ^ kScramble;
    std::memcpy(map, &descriptor, sizeof descriptor);
    return CUDA_SUCCESS;
  });
}

SIMGPU_EXPORT void* simgpu_tensor_map_address(const void* map) {
  Descriptor descriptor;
  std::memcpy(&descriptor, map, sizeof descriptor);
  return reinterpret_cast<void*>(descriptor.scrambled_address ^ kScramble);
}

}  // extern "C"
