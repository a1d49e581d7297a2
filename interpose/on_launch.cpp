// Kernel launches: what their parameters name is told to the engine, before the driver gets the launch.
#include <algorithm>
#include <utility>
#include <vector>

#include "interpose/handlers.hpp"
#include "interpose/kernel_args.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/shim.hpp"

namespace hmshim::interpose {

namespace {

// What a launch looks like apart from its arguments.
struct Shape {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
};

// Mixes what identifies a launch across iterations. Not cryptographic: a collision costs confidence, never data.
std::uint64_t signature_of(std::uint64_t kernel, const Shape& shape) noexcept {
  const auto mix = [](std::uint64_t hash, std::uint64_t word) noexcept {
    return (hash ^ word) * 0x9E3779B97F4A7C15ULL;
  };
  std::uint64_t hash = mix(kernel, shape.grid_x | std::uint64_t{shape.grid_y} << 32);
  hash = mix(hash ^ hash >> 29, shape.grid_z | std::uint64_t{shape.block_x} << 32);
  hash = mix(hash ^ hash >> 29,
             shape.block_y | std::uint64_t{shape.block_z} << 16 | std::uint64_t{shape.shared_bytes} << 32);
  return hash ^ hash >> 32;
}

// What it returns lasts as long as the launch.
TraceRecorder::Running announce(const void* function, const Shape& shape, CUstream stream, void** params,
                                void** extra) {
  Shim& shim = Shim::get();
  // Other streams go on working while one is captured: what they use must not be reused behind their back.
  if (!shim.captures.holds(stream, shim.driver)) shim.pools.note_work(stream);
  if (shim.captures.are_running()) {
    shim.bypasses.count(Bypass::launch_in_capture);
    return {};
  }
  Touched touched;
  std::uint64_t kernel = reinterpret_cast<std::uintptr_t>(function);
  if (const ParamLayout* layout = shim.layouts.find(function, shim.driver)) {
    kernel = layout->kernel;
    collect_launch(*layout, params, extra, shim.allocations, touched);
    if (shim.tensor_maps.are_known()) [[unlikely]]
      shim.tensor_maps.collect(*layout, params, extra, shim.allocations, touched);
  } else {
    shim.bypasses.count(Bypass::unknown_parameters);
  }
  const std::uint64_t signature = signature_of(kernel, shape);
  shim.engines.launch(signature, touched.extents(), stream);
  return shim.trace.launch(function, shim.layouts, signature, touched.extents(), stream);
}

// `room` is the guest's; the driver fills in no more than there are and leaves the rest of the array as it was. Where
// it cannot say how many there are, nothing is learned.
template <class Handle, class Owner>
void learn_all(const Handle* handles, unsigned room, HandleKind kind, Owner owner,
               CUresult (*count_of)(unsigned*, Owner)) noexcept {
  contain([&] {
    unsigned count = 0;
    if (count_of == nullptr || count_of(&count, owner) != CUDA_SUCCESS) return;
    for (unsigned i = 0; i < std::min(room, count); ++i) Shim::get().layouts.learn(handles[i], kind, owner);
  });
}

CUresult encoded(CUresult result, const CUtensorMap* map, const void* address) noexcept {
  if (result == CUDA_SUCCESS) Shim::get().tensor_maps.learn(*map, address);
  return result;
}

Shape shape_of(const CUlaunchConfig& config) noexcept {
  return {config.gridDimX,  config.gridDimY,  config.gridDimZ,      config.blockDimX,
          config.blockDimY, config.blockDimZ, config.sharedMemBytes};
}

}  // namespace

#define HMSHIM_GRID_PARAMS                                                                                    \
  CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
      unsigned block_z, unsigned shared_bytes, CUstream stream, void **params
#define HMSHIM_GRID_ARGS function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params
#define HMSHIM_SHAPE \
  Shape { grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes }

#define HMSHIM_LAUNCH(symbol, flavour)                                                     \
  CUresult on_##symbol(HMSHIM_GRID_PARAMS, void** extra) {                                 \
    const auto running = announce(function, HMSHIM_SHAPE, flavour(stream), params, extra); \
    return real().symbol(HMSHIM_GRID_ARGS, extra);                                         \
  }
HMSHIM_LAUNCH(cuLaunchKernel, stream_of_legacy)
HMSHIM_LAUNCH(cuLaunchKernel_ptsz, stream_of_ptsz)

#define HMSHIM_LAUNCH_COOPERATIVE(symbol, flavour)                                           \
  CUresult on_##symbol(HMSHIM_GRID_PARAMS) {                                                 \
    const auto running = announce(function, HMSHIM_SHAPE, flavour(stream), params, nullptr); \
    return real().symbol(HMSHIM_GRID_ARGS);                                                  \
  }
HMSHIM_LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, stream_of_legacy)
HMSHIM_LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, stream_of_ptsz)

#define HMSHIM_LAUNCH_EX(symbol, flavour)                                                                \
  CUresult on_##symbol(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) { \
    if (config == nullptr) return real().symbol(config, function, params, extra);                        \
    const auto running = announce(function, shape_of(*config), flavour(config->hStream), params, extra); \
    return real().symbol(config, function, params, extra);                                               \
  }
HMSHIM_LAUNCH_EX(cuLaunchKernelEx, stream_of_legacy)
HMSHIM_LAUNCH_EX(cuLaunchKernelEx_ptsz, stream_of_ptsz)

CUresult on_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned flags) {
  std::vector<TraceRecorder::Running> running;
  for (unsigned i = 0; launches != nullptr && i < count; ++i) {
    const CUDA_LAUNCH_PARAMS& launch = launches[i];
    TraceRecorder::Running one = announce(launch.function,
                                          {launch.gridDimX, launch.gridDimY, launch.gridDimZ, launch.blockDimX,
                                           launch.blockDimY, launch.blockDimZ, launch.sharedMemBytes},
                                          stream_of_legacy(launch.hStream), launch.kernelParams, nullptr);
    if (one.is_measured()) running.push_back(std::move(one));
  }
  return real().cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
}

// What kind of handle each is: the driver has one question for functions and another for kernels.

CUresult on_cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const CUresult result = real().cuModuleGetFunction(function, module, name);
  if (result == CUDA_SUCCESS) contain([&] { Shim::get().layouts.learn(*function, HandleKind::Function, module); });
  return result;
}

CUresult on_cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule module) {
  const CUresult result = real().cuModuleEnumerateFunctions(functions, count, module);
  if (result == CUDA_SUCCESS)
    learn_all(functions, count, HandleKind::Function, module, Shim::get().driver.cuModuleGetFunctionCount);
  return result;
}

CUresult on_cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const CUresult result = real().cuLibraryGetKernel(kernel, library, name);
  if (result == CUDA_SUCCESS) contain([&] { Shim::get().layouts.learn(*kernel, HandleKind::Kernel, library); });
  return result;
}

CUresult on_cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
  const CUresult result = real().cuLibraryEnumerateKernels(kernels, count, library);
  if (result == CUDA_SUCCESS)
    learn_all(kernels, count, HandleKind::Kernel, library, Shim::get().driver.cuLibraryGetKernelCount);
  return result;
}

CUresult on_cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  const CUresult result = real().cuKernelGetFunction(function, kernel);
  if (result == CUDA_SUCCESS) contain([&] { Shim::get().layouts.learn_function_of(*function, kernel); });
  return result;
}

// Forgotten BEFORE the unload: afterwards another thread may be given the same handle for something else.
CUresult on_cuModuleUnload(CUmodule module) {
  Shim::get().layouts.forget(module);
  Shim::get().trace.forget_kernels();
  return real().cuModuleUnload(module);
}

CUresult on_cuLibraryUnload(CUlibrary library) {
  Shim::get().layouts.forget(library);
  Shim::get().trace.forget_kernels();
  return real().cuLibraryUnload(library);
}

// Tensor maps: what each descriptor was made from.

#define HMSHIM_ENCODE_TILED                                                                           \
  CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims, \
      const cuuint64_t *strides
CUresult on_cuTensorMapEncodeTiled(HMSHIM_ENCODE_TILED, const cuuint32_t* box, const cuuint32_t* element_strides,
                                   CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                   CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  const CUresult result = real().cuTensorMapEncodeTiled(map, type, rank, address, dims, strides, box, element_strides,
                                                        interleave, swizzle, promotion, fill);
  return encoded(result, map, address);
}
CUresult on_cuTensorMapEncodeIm2col(HMSHIM_ENCODE_TILED, const int* lower, const int* upper, cuuint32_t channels,
                                    cuuint32_t pixels, const cuuint32_t* element_strides,
                                    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  const CUresult result =
      real().cuTensorMapEncodeIm2col(map, type, rank, address, dims, strides, lower, upper, channels, pixels,
                                     element_strides, interleave, swizzle, promotion, fill);
  return encoded(result, map, address);
}
CUresult on_cuTensorMapEncodeIm2colWide(HMSHIM_ENCODE_TILED, int lower, int upper, cuuint32_t channels,
                                        cuuint32_t pixels, const cuuint32_t* element_strides,
                                        CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
                                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                        CUtensorMapFloatOOBfill fill) {
  const CUresult result =
      real().cuTensorMapEncodeIm2colWide(map, type, rank, address, dims, strides, lower, upper, channels, pixels,
                                         element_strides, interleave, mode, swizzle, promotion, fill);
  return encoded(result, map, address);
}
CUresult on_cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  return encoded(real().cuTensorMapReplaceAddress(map, address), map, address);
}

}  // namespace hmshim::interpose
