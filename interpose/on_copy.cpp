// Copies and memsets: what they name is touched, and made resident first (copy engines fault page by page).
#include <initializer_list>

#include "interpose/handlers.hpp"
#include "interpose/operands.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/shim.hpp"

namespace hmshim::interpose {

namespace {

// What it returns lasts as long as the copy.
TraceRecorder::Running announce(CUstream stream, const Touched& touched) {
  Shim& shim = Shim::get();
  if (!shim.captures.holds(stream, shim.driver)) shim.pools.note_work(stream);
  if (touched.extents().empty()) return {};
  if (shim.captures.are_running()) {
    shim.bypasses.count(Bypass::launch_in_capture);
    return {};
  }
  shim.engines.copy(touched.extents(), stream);
  return shim.trace.copy(touched.extents(), stream);
}

TraceRecorder::Running prepare(CUstream stream, std::initializer_list<CUdeviceptr> addresses) {
  Touched touched;
  for (const CUdeviceptr address : addresses) touch(Shim::get().allocations, address, touched);
  return announce(stream, touched);
}

// All copies of a batch at once: `sides(i)` are the two addresses of copy i.
template <class Sides>
TraceRecorder::Running prepare_batch(CUstream stream, std::size_t count, Sides&& sides) {
  Touched touched;
  for (std::size_t i = 0; i < count; ++i) {
    for (const CUdeviceptr address : sides(i)) touch(Shim::get().allocations, address, touched);
    if (touched.extents().size() + 2 <= policy::kMaxTouched) continue;
    static_cast<void>(announce(stream, touched));
    touched.clear();
  }
  return announce(stream, touched);
}

CUdeviceptr address_of(const void* host) noexcept { return reinterpret_cast<CUdeviceptr>(host); }

template <class Copy>
TraceRecorder::Running prepare_box(CUstream stream, const Copy* copy) {
  if (copy == nullptr) return {};
  const auto [dst, src] = sides_of(*copy);
  return prepare(stream, {dst, src});
}

}  // namespace

// A row names the symbol, its parameters and arguments, and the two addresses it touches (0: none).
// SYNC calls go to the default stream of their flavour and have waited for the device when they return.
#define HMSHIM_SYNC(symbol, stream, params, args, ...)     \
  CUresult on_##symbol params {                            \
    const CUresult result = [&] {                          \
      const auto running = prepare(stream, {__VA_ARGS__}); \
      return real().symbol args;                           \
    }();                                                   \
    Shim::get().waited();                                  \
    return result;                                         \
  }
#define HMSHIM_ASYNC(symbol, stream, params, args, ...)  \
  CUresult on_##symbol params {                          \
    const auto running = prepare(stream, {__VA_ARGS__}); \
    return real().symbol args;                           \
  }
#define HMSHIM_BOX_SYNC(symbol, stream, type)         \
  CUresult on_##symbol(const type* copy) {            \
    const CUresult result = [&] {                     \
      const auto running = prepare_box(stream, copy); \
      return real().symbol(copy);                     \
    }();                                              \
    Shim::get().waited();                             \
    return result;                                    \
  }
#define HMSHIM_BOX_ASYNC(symbol, flavour, type)              \
  CUresult on_##symbol(const type* copy, CUstream stream) {  \
    const auto running = prepare_box(flavour(stream), copy); \
    return real().symbol(copy, stream);                      \
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
HMSHIM_BOX_SYNC(cuMemcpy3DPeer, CU_STREAM_LEGACY, CUDA_MEMCPY3D_PEER)
HMSHIM_BOX_SYNC(cuMemcpy3DPeer_ptds, CU_STREAM_PER_THREAD, CUDA_MEMCPY3D_PEER)
HMSHIM_BOX_ASYNC(cuMemcpy3DPeerAsync, stream_of_legacy, CUDA_MEMCPY3D_PEER)
HMSHIM_BOX_ASYNC(cuMemcpy3DPeerAsync_ptsz, stream_of_ptsz, CUDA_MEMCPY3D_PEER)

// Between an array, which is never ours, and linear memory.
#define HMSHIM_ARRAY_COPY(suffix, stream)                                                                     \
  HMSHIM_SYNC(cuMemcpyAtoD_v2##suffix, stream, (CUdeviceptr dst, CUarray array, size_t offset, size_t bytes), \
              (dst, array, offset, bytes), dst)                                                               \
  HMSHIM_SYNC(cuMemcpyDtoA_v2##suffix, stream, (CUarray array, size_t offset, CUdeviceptr src, size_t bytes), \
              (array, offset, src, bytes), src)
HMSHIM_ARRAY_COPY(, CU_STREAM_LEGACY)
HMSHIM_ARRAY_COPY(_ptds, CU_STREAM_PER_THREAD)

#define HMSHIM_BATCH_PARAMS                                                                          \
  CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, \
      size_t *attribute_of_first, size_t attribute_count
#define HMSHIM_BATCH_ARGS dsts, srcs, sizes, count, attributes, attribute_of_first, attribute_count
#define HMSHIM_BATCH_SIDES \
  dsts != nullptr &&srcs != nullptr ? count : 0, [=](std::size_t i) { return std::array{dsts[i], srcs[i]}; }
#define HMSHIM_BATCH(suffix, flavour)                                                            \
  CUresult on_cuMemcpyBatchAsync##suffix(HMSHIM_BATCH_PARAMS, size_t* failed, CUstream stream) { \
    const auto running = prepare_batch(flavour(stream), HMSHIM_BATCH_SIDES);                     \
    return real().cuMemcpyBatchAsync##suffix(HMSHIM_BATCH_ARGS, failed, stream);                 \
  }                                                                                              \
  CUresult on_cuMemcpyBatchAsync_v2##suffix(HMSHIM_BATCH_PARAMS, CUstream stream) {              \
    const auto running = prepare_batch(flavour(stream), HMSHIM_BATCH_SIDES);                     \
    return real().cuMemcpyBatchAsync_v2##suffix(HMSHIM_BATCH_ARGS, stream);                      \
  }
HMSHIM_BATCH(, stream_of_legacy)
HMSHIM_BATCH(_ptsz, stream_of_ptsz)

#define HMSHIM_BOX_BATCH_SIDES copies != nullptr ? count : 0, [=](std::size_t i) { return sides_of(copies[i]); }
#define HMSHIM_BOX_BATCH(suffix, flavour)                                                                             \
  CUresult on_cuMemcpy3DBatchAsync##suffix(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies, size_t* failed,              \
                                           unsigned long long flags, CUstream stream) {                               \
    const auto running = prepare_batch(flavour(stream), HMSHIM_BOX_BATCH_SIDES);                                      \
    return real().cuMemcpy3DBatchAsync##suffix(count, copies, failed, flags, stream);                                 \
  }                                                                                                                   \
  CUresult on_cuMemcpy3DBatchAsync_v2##suffix(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies, unsigned long long flags, \
                                              CUstream stream) {                                                      \
    const auto running = prepare_batch(flavour(stream), HMSHIM_BOX_BATCH_SIDES);                                      \
    return real().cuMemcpy3DBatchAsync_v2##suffix(count, copies, flags, stream);                                      \
  }
HMSHIM_BOX_BATCH(, stream_of_legacy)
HMSHIM_BOX_BATCH(_ptsz, stream_of_ptsz)

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
