// Copies and memsets: what they name is touched, and made resident first (copy engines fault page by page).
//
// The extent is what matters to the policy, so the first byte of each side is enough: a range lies within one
// allocation.
#include <initializer_list>

#include "interpose/handlers.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/shim.hpp"

namespace hmshim::interpose {

namespace {

void prepare(CUstream stream, std::initializer_list<CUdeviceptr> addresses) {
  Shim& shim = Shim::get();
  if (!shim.captures.are_running()) shim.pools.note_work(stream);
  Touched touched;
  for (const CUdeviceptr address : addresses) {
    if (const uvm::Hit hit = shim.allocations.find(address); hit.extent != policy::kNoExtent) touched.add(hit);
  }
  if (touched.extents().empty()) return;
  if (shim.captures.are_running()) {
    shim.bypasses.count(Bypass::launch_in_capture);
    return;
  }
  shim.engines.copy(touched.extents(), stream);
}

CUdeviceptr address_of(const void* host) noexcept { return reinterpret_cast<CUdeviceptr>(host); }

// The side of a 2D or 3D copy that is linear memory and may be ours; array and host sides are not.
CUdeviceptr side(CUmemorytype type, CUdeviceptr device) noexcept {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? device : 0;
}

template <class Copy>
void prepare_box(CUstream stream, const Copy* copy) {
  if (copy == nullptr) return;
  prepare(stream, {side(copy->dstMemoryType, copy->dstDevice), side(copy->srcMemoryType, copy->srcDevice)});
}

}  // namespace

// A row names the symbol, its parameters and arguments, and the two addresses it touches (0: none).
// SYNC calls go to the default stream of their flavour and have waited for the device when they return.
#define HMSHIM_SYNC(symbol, stream, params, args, ...) \
  CUresult on_##symbol params {                        \
    prepare(stream, {__VA_ARGS__});                    \
    const CUresult result = real().symbol args;        \
    Shim::get().engines.settle();                      \
    return result;                                     \
  }
#define HMSHIM_ASYNC(symbol, stream, params, args, ...) \
  CUresult on_##symbol params {                         \
    prepare(stream, {__VA_ARGS__});                     \
    return real().symbol args;                          \
  }
#define HMSHIM_BOX_SYNC(symbol, stream, type)    \
  CUresult on_##symbol(const type* copy) {       \
    prepare_box(stream, copy);                   \
    const CUresult result = real().symbol(copy); \
    Shim::get().engines.settle();                \
    return result;                               \
  }
#define HMSHIM_BOX_ASYNC(symbol, flavour, type)             \
  CUresult on_##symbol(const type* copy, CUstream stream) { \
    prepare_box(flavour(stream), copy);                     \
    return real().symbol(copy, stream);                     \
  }

#define HMSHIM_COPY(sync_symbol, sync_ptds, async_symbol, async_ptsz, dst_type, src_type, dst_address, src_address) \
  HMSHIM_SYNC(sync_symbol, CU_STREAM_LEGACY, (dst_type dst, src_type src, size_t bytes), (dst, src, bytes),         \
              dst_address, src_address)                                                                             \
  HMSHIM_SYNC(sync_ptds, CU_STREAM_PER_THREAD, (dst_type dst, src_type src, size_t bytes), (dst, src, bytes),       \
              dst_address, src_address)                                                                             \
  HMSHIM_ASYNC(async_symbol, stream_of_legacy(stream), (dst_type dst, src_type src, size_t bytes, CUstream stream), \
               (dst, src, bytes, stream), dst_address, src_address)                                                 \
  HMSHIM_ASYNC(async_ptsz, stream_of_ptsz(stream), (dst_type dst, src_type src, size_t bytes, CUstream stream),     \
               (dst, src, bytes, stream), dst_address, src_address)

HMSHIM_COPY(cuMemcpy, cuMemcpy_ptds, cuMemcpyAsync, cuMemcpyAsync_ptsz, CUdeviceptr, CUdeviceptr, dst, src)
HMSHIM_COPY(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr,
            const void*, dst, address_of(src))
HMSHIM_COPY(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, void*, CUdeviceptr,
            address_of(dst), src)
HMSHIM_COPY(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr,
            CUdeviceptr, dst, src)

#define HMSHIM_PEER_PARAMS CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes
HMSHIM_SYNC(cuMemcpyPeer, CU_STREAM_LEGACY, (HMSHIM_PEER_PARAMS), (dst, dst_context, src, src_context, bytes), dst, src)
HMSHIM_SYNC(cuMemcpyPeer_ptds, CU_STREAM_PER_THREAD, (HMSHIM_PEER_PARAMS), (dst, dst_context, src, src_context, bytes),
            dst, src)
HMSHIM_ASYNC(cuMemcpyPeerAsync, stream_of_legacy(stream), (HMSHIM_PEER_PARAMS, CUstream stream),
             (dst, dst_context, src, src_context, bytes, stream), dst, src)
HMSHIM_ASYNC(cuMemcpyPeerAsync_ptsz, stream_of_ptsz(stream), (HMSHIM_PEER_PARAMS, CUstream stream),
             (dst, dst_context, src, src_context, bytes, stream), dst, src)

HMSHIM_BOX_SYNC(cuMemcpy2D_v2, CU_STREAM_LEGACY, CUDA_MEMCPY2D)
HMSHIM_BOX_SYNC(cuMemcpy2D_v2_ptds, CU_STREAM_PER_THREAD, CUDA_MEMCPY2D)
HMSHIM_BOX_SYNC(cuMemcpy2DUnaligned_v2, CU_STREAM_LEGACY, CUDA_MEMCPY2D)
HMSHIM_BOX_SYNC(cuMemcpy2DUnaligned_v2_ptds, CU_STREAM_PER_THREAD, CUDA_MEMCPY2D)
HMSHIM_BOX_SYNC(cuMemcpy3D_v2, CU_STREAM_LEGACY, CUDA_MEMCPY3D)
HMSHIM_BOX_SYNC(cuMemcpy3D_v2_ptds, CU_STREAM_PER_THREAD, CUDA_MEMCPY3D)
HMSHIM_BOX_ASYNC(cuMemcpy2DAsync_v2, stream_of_legacy, CUDA_MEMCPY2D)
HMSHIM_BOX_ASYNC(cuMemcpy2DAsync_v2_ptsz, stream_of_ptsz, CUDA_MEMCPY2D)
HMSHIM_BOX_ASYNC(cuMemcpy3DAsync_v2, stream_of_legacy, CUDA_MEMCPY3D)
HMSHIM_BOX_ASYNC(cuMemcpy3DAsync_v2_ptsz, stream_of_ptsz, CUDA_MEMCPY3D)

// Memsets are asynchronous to the host even in their plain form (CUDA driver API, synchronization behaviour): nothing
// to settle.
#define HMSHIM_MEMSET(bits, type)                                                                                     \
  HMSHIM_ASYNC(cuMemsetD##bits##_v2, CU_STREAM_LEGACY, (CUdeviceptr dst, type value, size_t n), (dst, value, n), dst) \
  HMSHIM_ASYNC(cuMemsetD##bits##_v2_ptds, CU_STREAM_PER_THREAD, (CUdeviceptr dst, type value, size_t n),              \
               (dst, value, n), dst)                                                                                  \
  HMSHIM_ASYNC(cuMemsetD##bits##Async, stream_of_legacy(stream),                                                      \
               (CUdeviceptr dst, type value, size_t n, CUstream stream), (dst, value, n, stream), dst)                \
  HMSHIM_ASYNC(cuMemsetD##bits##Async_ptsz, stream_of_ptsz(stream),                                                   \
               (CUdeviceptr dst, type value, size_t n, CUstream stream), (dst, value, n, stream), dst)
#define HMSHIM_MEMSET_2D(bits, type)                                                                      \
  HMSHIM_ASYNC(cuMemsetD2D##bits##_v2, CU_STREAM_LEGACY,                                                  \
               (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height),                  \
               (dst, pitch, value, width, height), dst)                                                   \
  HMSHIM_ASYNC(cuMemsetD2D##bits##_v2_ptds, CU_STREAM_PER_THREAD,                                         \
               (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height),                  \
               (dst, pitch, value, width, height), dst)                                                   \
  HMSHIM_ASYNC(cuMemsetD2D##bits##Async, stream_of_legacy(stream),                                        \
               (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, CUstream stream), \
               (dst, pitch, value, width, height, stream), dst)                                           \
  HMSHIM_ASYNC(cuMemsetD2D##bits##Async_ptsz, stream_of_ptsz(stream),                                     \
               (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, CUstream stream), \
               (dst, pitch, value, width, height, stream), dst)

HMSHIM_MEMSET(8, unsigned char)
HMSHIM_MEMSET(16, unsigned short)
HMSHIM_MEMSET(32, unsigned int)
HMSHIM_MEMSET_2D(8, unsigned char)
HMSHIM_MEMSET_2D(16, unsigned short)
HMSHIM_MEMSET_2D(32, unsigned int)

}  // namespace hmshim::interpose
