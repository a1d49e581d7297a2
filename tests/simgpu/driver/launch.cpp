// Kernel launches: checks as the hardware makes them, arguments packed by the layout of the image.
#include <cstring>

#include "tests/simgpu/driver/capture.hpp"
#include "tests/simgpu/driver/driver.hpp"
#include "tests/simgpu/driver/flavours.hpp"
#include "tests/simgpu/driver/module.hpp"
#include "tests/simgpu/driver/work.hpp"

namespace hmshim::simgpu {
namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxGridYz = 65535;

bool has_valid_dimensions(const KernelWork& work) {
  const auto& grid = work.grid;
  const auto& block = work.block;
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || block[0] == 0 || block[1] == 0 || block[2] == 0) return false;
  if (grid[0] > 0x7fffffffU || grid[1] > kMaxGridYz || grid[2] > kMaxGridYz) return false;
  if (block[0] > kMaxThreads || block[1] > kMaxThreads || block[2] > 64) return false;
  return std::uint64_t{block[0]} * block[1] * block[2] <= kMaxThreads;
}

int setting_or(const std::map<CUfunction_attribute, int>& settings, CUfunction_attribute which, int otherwise) {
  const auto found = settings.find(which);
  return found == settings.end() ? otherwise : found->second;
}

// The packed form of either kind of arguments. False when they do not fit the kernel.
bool pack(const Code& code, void** parameters, void** extra, std::vector<std::byte>& packed) {
  if (parameters != nullptr && extra != nullptr) return false;
  packed.resize(code.argument_bytes);
  if (code.argument_bytes == 0) return true;
  if (parameters != nullptr) {
    for (std::size_t i = 0; i < code.image.parameters.size(); ++i) {
      const Parameter& parameter = code.image.parameters[i];
      if (parameters[i] == nullptr) return false;
      std::memcpy(packed.data() + parameter.offset_bytes, parameters[i], parameter.size_bytes);
    }
    return true;
  }
  if (extra == nullptr) return false;
  const void* buffer = nullptr;
  std::size_t bytes = 0;
  for (void** at = extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = at[1];
    } else if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = *static_cast<const std::size_t*>(at[1]);
    } else {
      return false;
    }
  }
  if (buffer == nullptr || bytes < code.argument_bytes) return false;
  std::memcpy(packed.data(), buffer, code.argument_bytes);
  return true;
}

CUresult launch(Call call, CUfunction handle, const unsigned (&grid)[3], const unsigned (&block)[3],
                unsigned shared_bytes, CUstream stream_handle, void** parameters, void** extra) {
  return in_context(call, [&](const Context&) -> CUresult {
    Stream* stream = find_stream(stream_handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    KernelWork work;
    std::copy_n(grid, 3, work.grid);
    std::copy_n(block, 3, work.block);
    work.shared_bytes = shared_bytes;
    if (const CUresult result = prepare_kernel(handle, stream->context, parameters, extra, work);
        result != CUDA_SUCCESS) {
      return result;
    }
    return submit(*stream, std::move(work));
  });
}

CUresult launch_configured(Call call, const CUlaunchConfig* config, CUstream stream, CUfunction function,
                           void** parameters, void** extra) {
  const unsigned grid[] = {config->gridDimX, config->gridDimY, config->gridDimZ};
  const unsigned block[] = {config->blockDimX, config->blockDimY, config->blockDimZ};
  return launch(call, function, grid, block, config->sharedMemBytes, stream, parameters, extra);
}

}  // namespace

CUresult prepare_kernel(CUfunction handle, CUcontext context, void** parameters, void** extra, KernelWork& work) {
  const std::map<CUfunction_attribute, int>* settings = nullptr;
  if (const Function* function = driver().functions.find(handle)) {
    if (function->context != context) return CUDA_ERROR_INVALID_HANDLE;
    work.function = handle;
    work.code = function->code;
    settings = &function->settings;
  } else if (const auto kernel_handle = reinterpret_cast<CUkernel>(handle);
             const LibraryKernel* kernel = driver().kernels.find(kernel_handle)) {
    // Since CUDA 12 every launch takes a CUkernel too, for the context of the stream.
    work.kernel = kernel_handle;
    work.code = kernel->code;
    settings = &kernel->settings;
  } else {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const Context* found = driver().contexts.find(context);
  if (found == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  work.context = context;
  work.device = found->device;
  if (!has_valid_dimensions(work)) return CUDA_ERROR_INVALID_VALUE;
  const int shared_limit = setting_or(*settings, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kSharedBytes);
  if (work.shared_bytes > static_cast<unsigned>(shared_limit)) return CUDA_ERROR_INVALID_VALUE;
  return pack(*work.code, parameters, extra, work.arguments) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

#define SIMGPU_LAUNCH_PARAMETERS                                                                               \
  (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
   unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters, void** extra)

SIMGPU_BOTH(cuLaunchKernel, SIMGPU_LAUNCH_PARAMETERS,
            launch(kCall, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, on(stream),
                   parameters, extra))

// Co-residency of the grid is not checked.
SIMGPU_BOTH(cuLaunchCooperativeKernel,
            (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
             unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters),
            launch(kCall, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, on(stream),
                   parameters, nullptr))

// Launch attributes (clusters, priorities, dependent launches) are accepted and change nothing.
SIMGPU_BOTH(cuLaunchKernelEx, (const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra),
            config == nullptr ? CUDA_ERROR_INVALID_VALUE
                              : launch_configured(kCall, config, on(config->hStream), function, parameters, extra))
