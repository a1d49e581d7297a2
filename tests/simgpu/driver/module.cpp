// Modules and libraries: images in, functions and kernels out.
#include "tests/simgpu/driver/module.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/simgpu/driver/capture.hpp"
#include "tests/simgpu/driver/memory.hpp"

namespace hmshim::simgpu {

Registration& registration_of(std::string_view kernel) {
  static std::mutex mutex;
  static auto* const registrations = new std::map<std::string, Registration, std::less<>>;
  const std::lock_guard lock(mutex);
  auto found = registrations->find(kernel);
  if (found == registrations->end()) {
    found = registrations->try_emplace(std::string(kernel)).first;
    found->second.kernel = kernel;
  }
  return found->second;
}

const Code* Program::find_kernel(std::string_view name) const noexcept {
  const auto found =
      std::ranges::lower_bound(kernels, name, {}, [](const Code& code) { return std::string_view(code.image.name); });
  return found != kernels.end() && found->image.name == name ? &*found : nullptr;
}

const GlobalImage* Program::find_global(std::string_view name) const noexcept {
  const auto found = std::ranges::find(globals, name, &GlobalImage::name);
  return found == globals.end() ? nullptr : &*found;
}

namespace {

Code make_code(KernelImage image) {
  Code code;
  for (const Parameter& parameter : image.parameters) {
    code.parameter_bytes.push_back(parameter.size_bytes);
    code.argument_bytes = std::max(code.argument_bytes, parameter.offset_bytes + parameter.size_bytes);
  }
  code.registration = &registration_of(image.name);
  code.image = std::move(image);
  return code;
}

CUresult load_program(const void* image, const Program** out) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Profile& profile = driver().model->profile();
  ProgramImage decoded;
  const ImageError error =
      decode_image(image, static_cast<std::uint32_t>(profile.compute_major * 10 + profile.compute_minor), decoded);
  if (error == ImageError::NoBinary) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  if (error != ImageError::None) {
    std::fprintf(stderr, "simgpu: program image: %s\n", to_string(error));
    return CUDA_ERROR_INVALID_IMAGE;
  }
  // Kept for ever: see Program.
  static std::mutex mutex;
  static auto* const programs = new std::vector<std::unique_ptr<Program>>;
  auto program = std::make_unique<Program>();
  for (KernelImage& kernel : decoded.kernels) program->kernels.push_back(make_code(std::move(kernel)));
  program->globals = std::move(decoded.globals);
  *out = program.get();
  const std::lock_guard lock(mutex);
  programs->push_back(std::move(program));
  return CUDA_SUCCESS;
}

CUresult load_file(const char* path, std::string& content) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  content.assign(std::istreambuf_iterator<char>(file), {});
  return content.size() < 64 ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}

CUmodule make_module(CUcontext context, const Program* program, CUlibrary library) {
  const CUmodule handle = driver().modules.create();
  Module& module = *driver().modules.find(handle);
  module.context = context;
  module.program = program;
  module.library = library;
  return handle;
}

CUresult load_module(Call call, CUmodule* out, const void* image) {
  return in_context(call, [=](const Context&) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Program* program = nullptr;
    if (const CUresult result = load_program(image, &program); result != CUDA_SUCCESS) return result;
    *out = make_module(thread().stack.back(), program, nullptr);
    return CUDA_SUCCESS;
  });
}

CUfunction function_of(CUmodule module_handle, Module& module, const Code* code) {
  const std::lock_guard lock(driver().mutex);
  CUfunction& handle = module.functions[code];
  if (handle == nullptr) {
    handle = driver().functions.create();
    Function& function = *driver().functions.find(handle);
    function.module = module_handle;
    function.context = module.context;
    function.code = code;
  }
  return handle;
}

CUresult make_library(CUlibrary* out, const Program* program) {
  const CUlibrary handle = driver().libraries.create();
  Library& library = *driver().libraries.find(handle);
  library.program = program;
  for (const Code& code : program->kernels) {
    const CUkernel kernel = driver().kernels.create();
    driver().kernels.find(kernel)->library = handle;
    driver().kernels.find(kernel)->code = &code;
    library.kernels.emplace(&code, kernel);
  }
  *out = handle;
  return CUDA_SUCCESS;
}

// The library's module in the current context, loaded on first need.
CUmodule module_of(CUlibrary handle, Library& library) {
  const CUcontext context = thread().stack.back();
  const std::lock_guard lock(driver().mutex);
  CUmodule& module = library.modules[context];
  if (driver().modules.find(module) == nullptr) module = make_module(context, library.program, handle);
  return module;
}

// A call about one object of a table.
template <class Table, class Handle, class Body>
CUresult on(Call call, Table& table, Handle handle, Body&& body) {
  return initialised(call, [&]() -> CUresult {
    auto* object = table.find(handle);
    return object == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*object);
  });
}
template <class Table, class Handle, class Body>
CUresult on_in_context(Call call, Table& table, Handle handle, Body&& body) {
  return in_context(call, [&](const Context&) -> CUresult {
    auto* object = table.find(handle);
    return object == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*object);
  });
}

CUresult global_address(Module& module, const char* name, CUdeviceptr* out, std::size_t* bytes) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const GlobalImage* global = module.program->find_global(name);
  if (global == nullptr) return CUDA_ERROR_NOT_FOUND;
  const Context* context = driver().contexts.find(module.context);
  if (context == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  CUdeviceptr address = 0;
  {
    const std::lock_guard lock(driver().mutex);
    if (const auto found = module.globals.find(name); found != module.globals.end()) address = found->second;
  }
  if (address == 0) {
    std::uint64_t fresh = 0;
    const Status status = driver().model->allocate_device(context->device, global->size_bytes, &fresh);
    if (status != Status::kOk) return to_result(status);
    if (global->initial.empty()) {
      std::memset(reinterpret_cast<void*>(fresh), 0, global->size_bytes);
    } else {
      std::memcpy(reinterpret_cast<void*>(fresh), global->initial.data(), global->initial.size());
    }
    remember_memory(fresh, {.origin = MemoryOrigin::Global, .bytes = global->size_bytes, .device = context->device});
    address = fresh;
    const std::lock_guard lock(driver().mutex);
    module.globals.emplace(name, address);
  }
  if (out != nullptr) *out = address;
  if (bytes != nullptr) *bytes = global->size_bytes;
  return CUDA_SUCCESS;
}

CUresult parameter_info(const Code& code, std::size_t index, std::size_t* offset, std::size_t* size) {
  if (offset == nullptr || index >= code.image.parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = code.image.parameters[index].offset_bytes;
  if (size != nullptr) *size = code.image.parameters[index].size_bytes;
  return CUDA_SUCCESS;
}

CUresult attribute(const std::map<CUfunction_attribute, int>& settings, CUfunction_attribute which, int* value) {
  if (value == nullptr || which < 0 || which >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (const auto found = settings.find(which); found != settings.end()) {
    *value = found->second;
    return CUDA_SUCCESS;
  }
  const Profile& profile = driver().model->profile();
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 1024;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = profile.compute_major * 10 + profile.compute_minor;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = kSharedBytes;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = -1;
      break;
    default:
      *value = 0;
      break;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(std::map<CUfunction_attribute, int>& settings, CUfunction_attribute which, int value) {
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || value > kSharedBytesOptIn) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(driver().mutex);
  settings[which] = value;
  return CUDA_SUCCESS;
}

template <class T>
CUresult give(T* out, T value) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = value;
  return CUDA_SUCCESS;
}

// A CUfunction, or, where the API takes both, a CUkernel in its place.
const Code* code_of(CUfunction handle) {
  if (const Function* function = driver().functions.find(handle)) return function->code;
  const LibraryKernel* kernel = driver().kernels.find(reinterpret_cast<CUkernel>(handle));
  return kernel == nullptr ? nullptr : kernel->code;
}

// As many blocks as threads and blocks per multiprocessor allow; registers and shared memory are taken to suffice.
CUresult active_blocks(Call call, int* out, CUfunction function, int block_size) {
  return in_context(call, [=](const Context&) {
    if (out == nullptr || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (code_of(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *out = block_size > 1024 ? 0 : std::min(2048 / block_size, 32);
    return CUDA_SUCCESS;
  });
}

CUresult best_block(Call call, int* grid, int* block, CUfunction function, int limit) {
  return in_context(call, [=](const Context&) {
    if (grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (code_of(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *block = limit > 0 ? std::min(limit, 1024) : 1024;
    *grid = driver().model->profile().multiprocessors * std::min(2048 / *block, 32);
    return CUDA_SUCCESS;
  });
}

}  // namespace

void unload_module(CUmodule handle) {
  Module* module = driver().modules.find(handle);
  if (module == nullptr) return;
  for (const auto& [name, address] : module->globals) release_memory(address);
  for (const auto& [code, function] : module->functions) driver().functions.destroy(function);
  driver().modules.destroy(handle);
}

}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

__attribute__((visibility("default"))) void simgpu_register(const char* mangled, simgpu_body body) {
  registration_of(mangled).body.store(body, std::memory_order_release);
}

__attribute__((visibility("default"))) void simgpu_register_footprint(const char* mangled, simgpu_describe describe) {
  registration_of(mangled).describe.store(describe, std::memory_order_release);
}

// ---- modules

CUresult cuModuleLoadData(CUmodule* out, const void* image) { return load_module(Call::cuModuleLoadData, out, image); }
CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, CUjit_option*, void**) {
  return load_module(Call::cuModuleLoadDataEx, out, image);
}
CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) {
  return load_module(Call::cuModuleLoadFatBinary, out, image);
}
CUresult cuModuleLoad(CUmodule* out, const char* path) {
  std::string content;
  if (const CUresult result = load_file(path, content); result != CUDA_SUCCESS) return result;
  return load_module(Call::cuModuleLoad, out, content.data());
}

CUresult cuModuleUnload(CUmodule handle) {
  return on_in_context(Call::cuModuleUnload, driver().modules, handle, [=](const Module& module) {
    if (module.library != nullptr) return CUDA_ERROR_NOT_PERMITTED;  // goes with its library
    unload_module(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  return on_in_context(Call::cuModuleGetFunction, driver().modules, handle, [=](Module& module) {
    if (out == nullptr || name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    const Code* code = module.program->find_kernel(name);
    if (code == nullptr) return CUDA_ERROR_NOT_FOUND;
    *out = function_of(handle, module, code);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule handle) {
  return on_in_context(Call::cuModuleGetFunctionCount, driver().modules, handle, [=](const Module& module) {
    return give(count, static_cast<unsigned>(module.program->kernels.size()));
  });
}

CUresult cuModuleEnumerateFunctions(CUfunction* out, unsigned count, CUmodule handle) {
  return on_in_context(Call::cuModuleEnumerateFunctions, driver().modules, handle, [=](Module& module) {
    if (out == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    const auto& kernels = module.program->kernels;
    for (std::size_t i = 0; i < std::min<std::size_t>(count, kernels.size()); ++i) {
      out[i] = function_of(handle, module, &kernels[i]);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* out, size_t* bytes, CUmodule handle, const char* name) {
  return on_in_context(Call::cuModuleGetGlobal_v2, driver().modules, handle,
                       [=](Module& module) { return global_address(module, name, out, bytes); });
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return initialised(Call::cuModuleGetLoadingMode, [=] { return give(mode, CU_MODULE_LAZY_LOADING); });
}

// ---- libraries

CUresult cuLibraryLoadData(CUlibrary* out, const void* image, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                           unsigned) {
  return initialised(Call::cuLibraryLoadData, [=] {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Program* program = nullptr;
    const CUresult result = load_program(image, &program);
    return result == CUDA_SUCCESS ? make_library(out, program) : result;
  });
}

CUresult cuLibraryLoadFromFile(CUlibrary* out, const char* path, CUjit_option*, void**, unsigned, CUlibraryOption*,
                               void**, unsigned) {
  return initialised(Call::cuLibraryLoadFromFile, [=] {
    std::string content;
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = load_file(path, content); result != CUDA_SUCCESS) return result;
    const Program* program = nullptr;
    const CUresult result = load_program(content.data(), &program);
    return result == CUDA_SUCCESS ? make_library(out, program) : result;
  });
}

CUresult cuLibraryUnload(CUlibrary handle) {
  return on(Call::cuLibraryUnload, driver().libraries, handle, [=](const Library& library) {
    for (const auto& [context, module] : library.modules) unload_module(module);
    for (const auto& [name, address] : library.managed) release_memory(address);
    for (const auto& [code, kernel] : library.kernels) driver().kernels.destroy(kernel);
    driver().libraries.destroy(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary handle, const char* name) {
  return on(Call::cuLibraryGetKernel, driver().libraries, handle, [=](const Library& library) {
    if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Code* code = library.program->find_kernel(name);
    return code == nullptr ? CUDA_ERROR_NOT_FOUND : give(out, library.kernels.at(code));
  });
}

CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary handle) {
  return on(Call::cuLibraryGetKernelCount, driver().libraries, handle,
            [=](const Library& library) { return give(count, static_cast<unsigned>(library.kernels.size())); });
}

CUresult cuLibraryEnumerateKernels(CUkernel* out, unsigned count, CUlibrary handle) {
  return on(Call::cuLibraryEnumerateKernels, driver().libraries, handle, [=](const Library& library) {
    if (out == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    unsigned filled = 0;
    for (const Code& code : library.program->kernels) {
      if (filled == count) break;
      out[filled++] = library.kernels.at(&code);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
  return on_in_context(Call::cuLibraryGetModule, driver().libraries, handle,
                       [=](Library& library) { return give(out, module_of(handle, library)); });
}

CUresult cuLibraryGetGlobal(CUdeviceptr* out, size_t* bytes, CUlibrary handle, const char* name) {
  return on_in_context(Call::cuLibraryGetGlobal, driver().libraries, handle, [=](Library& library) {
    return global_address(*driver().modules.find(module_of(handle, library)), name, out, bytes);
  });
}

// An image does not say which of its globals are __managed__; the runtime does, by asking here for those.
CUresult cuLibraryGetManaged(CUdeviceptr* out, size_t* bytes, CUlibrary handle, const char* name) {
  return on_in_context(Call::cuLibraryGetManaged, driver().libraries, handle, [=](Library& library) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const GlobalImage* global = library.program->find_global(name);
    if (global == nullptr) return CUDA_ERROR_NOT_FOUND;
    std::uint64_t address = 0;
    if (const auto found = library.managed.find(name); found != library.managed.end()) {
      address = found->second;
    } else {
      const Status status = driver().model->allocate_managed(0, global->size_bytes, &address);
      if (status != Status::kOk) return to_result(status);
      std::memcpy(reinterpret_cast<void*>(address), global->initial.data(), global->initial.size());
      remember_memory(address, {.origin = MemoryOrigin::Global, .bytes = global->size_bytes});
      library.managed.emplace(name, address);
    }
    if (out != nullptr) *out = address;
    if (bytes != nullptr) *bytes = global->size_bytes;
    return CUDA_SUCCESS;
  });
}

// ---- kernels of libraries

CUresult cuKernelGetFunction(CUfunction* out, CUkernel handle) {
  return on_in_context(Call::cuKernelGetFunction, driver().kernels, handle, [=](const LibraryKernel& kernel) {
    const CUmodule module = module_of(kernel.library, *driver().libraries.find(kernel.library));
    return give(out, function_of(module, *driver().modules.find(module), kernel.code));
  });
}
CUresult cuKernelGetLibrary(CUlibrary* out, CUkernel handle) {
  return on(Call::cuKernelGetLibrary, driver().kernels, handle,
            [=](const LibraryKernel& kernel) { return give(out, kernel.library); });
}
CUresult cuKernelGetName(const char** out, CUkernel handle) {
  return on(Call::cuKernelGetName, driver().kernels, handle,
            [=](const LibraryKernel& kernel) { return give(out, kernel.code->image.name.c_str()); });
}
CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* size) {
  return on(Call::cuKernelGetParamInfo, driver().kernels, handle,
            [=](const LibraryKernel& kernel) { return parameter_info(*kernel.code, index, offset, size); });
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute which, CUkernel handle, CUdevice) {
  return on(Call::cuKernelGetAttribute, driver().kernels, handle,
            [=](const LibraryKernel& kernel) { return attribute(kernel.settings, which, value); });
}
CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel handle, CUdevice) {
  return on(Call::cuKernelSetAttribute, driver().kernels, handle,
            [=](LibraryKernel& kernel) { return set_attribute(kernel.settings, which, value); });
}
CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache, CUdevice) {
  return on(Call::cuKernelSetCacheConfig, driver().kernels, handle, [](const LibraryKernel&) { return CUDA_SUCCESS; });
}

// ---- functions

CUresult cuFuncGetModule(CUmodule* out, CUfunction handle) {
  return on(Call::cuFuncGetModule, driver().functions, handle,
            [=](const Function& function) { return give(out, function.module); });
}
CUresult cuFuncGetName(const char** out, CUfunction handle) {
  return on(Call::cuFuncGetName, driver().functions, handle,
            [=](const Function& function) { return give(out, function.code->image.name.c_str()); });
}
CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  return on(Call::cuFuncGetParamInfo, driver().functions, handle,
            [=](const Function& function) { return parameter_info(*function.code, index, offset, size); });
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction handle) {
  return on(Call::cuFuncGetAttribute, driver().functions, handle,
            [=](const Function& function) { return attribute(function.settings, which, value); });
}
CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute which, int value) {
  return on(Call::cuFuncSetAttribute, driver().functions, handle,
            [=](Function& function) { return set_attribute(function.settings, which, value); });
}
CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
  return on(Call::cuFuncSetCacheConfig, driver().functions, handle, [](const Function&) { return CUDA_SUCCESS; });
}
CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig) {
  return on(Call::cuFuncSetSharedMemConfig, driver().functions, handle, [](const Function&) { return CUDA_SUCCESS; });
}
CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  return on(Call::cuFuncIsLoaded, driver().functions, handle,
            [=](const Function&) { return give(state, CU_FUNCTION_LOADING_STATE_LOADED); });
}
CUresult cuFuncLoad(CUfunction handle) {
  return on(Call::cuFuncLoad, driver().functions, handle, [](const Function&) { return CUDA_SUCCESS; });
}

// ---- occupancy

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int block_size, size_t) {
  return active_blocks(Call::cuOccupancyMaxActiveBlocksPerMultiprocessor, blocks, function, block_size);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int block_size, size_t,
                                                              unsigned) {
  return active_blocks(Call::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks, function, block_size);
}
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function, CUoccupancyB2DSize, size_t,
                                          int limit) {
  return best_block(Call::cuOccupancyMaxPotentialBlockSize, grid, block, function, limit);
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction function, CUoccupancyB2DSize,
                                                   size_t, int limit, unsigned) {
  return best_block(Call::cuOccupancyMaxPotentialBlockSizeWithFlags, grid, block, function, limit);
}
CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction function, int, int) {
  return in_context(Call::cuOccupancyAvailableDynamicSMemPerBlock, [=](const Context&) {
    if (code_of(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return give(bytes, static_cast<std::size_t>(kSharedBytes));
  });
}

}  // extern "C"
