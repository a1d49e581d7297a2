#include "tests/simgpu/runtime/registration.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace hmshim::simgpu::runtime {
namespace {

struct Variable {
  std::string name;
  bool is_managed = false;
  void** managed_pointer = nullptr;  // where the host keeps the address of a __managed__ variable
};

// One __cudaRegisterFatBinary.
struct Image {
  const void* wrapper = nullptr;
  CUlibrary library = nullptr;                      // loaded when first needed
  std::map<const void*, std::string> kernel_names;  // by host stub
  std::map<const void*, CUkernel> kernels;
  std::map<const void*, Variable> variables;  // by host shadow
};

struct Registry {
  std::mutex mutex;
  std::map<Image*, std::unique_ptr<Image>> images;
  std::map<const void*, Image*> image_of;  // by host stub or shadow
};

// Never destroyed: images unregister from exit handlers.
Registry& registry() {
  static auto* const made = new Registry;
  return *made;
}

Image* image_at(void** handle) { return reinterpret_cast<Image*>(handle); }

// The caller holds the registry's mutex.
cudaError_t load(Image& image) {
  if (image.library != nullptr) return cudaSuccess;
  const CUresult result =
      driver().cuLibraryLoadData_(&image.library, image.wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (result != CUDA_SUCCESS) {
    image.library = nullptr;
    return from(result);
  }
  for (auto& [shadow, variable] : image.variables) {
    if (!variable.is_managed) continue;
    CUdeviceptr where = 0;
    const CUresult found = driver().cuLibraryGetManaged_(&where, nullptr, image.library, variable.name.c_str());
    if (found != CUDA_SUCCESS) return from(found);
    *variable.managed_pointer = reinterpret_cast<void*>(where);
  }
  return cudaSuccess;
}

struct Configuration {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
// One launch statement pushes, its stub pops; statements nest where an argument launches a kernel itself.
// Never destroyed: handlers of atexit() may launch, after the thread's own destructors have run.
std::vector<Configuration>& configurations() {
  static thread_local auto* pushed = new std::vector<Configuration>;
  return *pushed;
}

}  // namespace

cudaError_t find_kernel(const void* function, CUkernel* kernel) {
  const std::lock_guard lock(registry().mutex);
  const auto owner = registry().image_of.find(function);
  if (owner == registry().image_of.end()) {
    *kernel = reinterpret_cast<CUkernel>(const_cast<void*>(function));
    return function == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
  }
  Image& image = *owner->second;
  const auto name = image.kernel_names.find(function);
  if (name == image.kernel_names.end()) return cudaErrorInvalidDeviceFunction;
  if (const cudaError_t error = load(image); error != cudaSuccess) return error;
  CUkernel& known = image.kernels[function];
  if (known == nullptr) {
    const CUresult result = driver().cuLibraryGetKernel_(&known, image.library, name->second.c_str());
    if (result != CUDA_SUCCESS) {
      known = nullptr;
      return result == CUDA_ERROR_NOT_FOUND ? cudaErrorInvalidDeviceFunction : from(result);
    }
  }
  *kernel = known;
  return cudaSuccess;
}

cudaError_t find_variable(const void* symbol, CUdeviceptr* where, std::size_t* bytes) {
  const std::lock_guard lock(registry().mutex);
  const auto owner = registry().image_of.find(symbol);
  if (owner == registry().image_of.end() || !owner->second->variables.contains(symbol)) return cudaErrorInvalidSymbol;
  Image& image = *owner->second;
  if (const cudaError_t error = load(image); error != cudaSuccess) return error;
  const Variable& variable = image.variables.at(symbol);
  const auto get = variable.is_managed ? driver().cuLibraryGetManaged_ : driver().cuLibraryGetGlobal_;
  return from(get(where, bytes, image.library, variable.name.c_str()));
}

}  // namespace hmshim::simgpu::runtime

using namespace hmshim::simgpu::runtime;

// ---- called by the code that nvcc generates; its declarations are in crt/host_runtime.h, for nvcc's own compilations
// only

SIMGPU_RUNTIME_EXPORT void** __cudaRegisterFatBinary(void* wrapper) {
  auto image = std::make_unique<Image>();
  image->wrapper = wrapper;
  Image* const handle = image.get();
  const std::lock_guard lock(registry().mutex);
  registry().images.emplace(handle, std::move(image));
  return reinterpret_cast<void**>(handle);
}

SIMGPU_RUNTIME_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}

SIMGPU_RUNTIME_EXPORT void __cudaUnregisterFatBinary(void** handle) {
  const std::lock_guard lock(registry().mutex);
  Image* const image = image_at(handle);
  if (!registry().images.contains(image)) return;
  if (image->library != nullptr) static_cast<void>(driver().cuLibraryUnload_(image->library));
  std::erase_if(registry().image_of, [image](const auto& entry) { return entry.second == image; });
  registry().images.erase(image);
}

SIMGPU_RUNTIME_EXPORT void __cudaRegisterFunction(void** handle, const char* stub, char*, const char* name, int, uint3*,
                                                  uint3*, dim3*, dim3*, int*) {
  const std::lock_guard lock(registry().mutex);
  image_at(handle)->kernel_names.emplace(stub, name);
  registry().image_of.emplace(stub, image_at(handle));
}

SIMGPU_RUNTIME_EXPORT void __cudaRegisterVar(void** handle, char* shadow, char*, const char* name, int, std::size_t,
                                             int, int) {
  const std::lock_guard lock(registry().mutex);
  image_at(handle)->variables.emplace(shadow, Variable{name, false, nullptr});
  registry().image_of.emplace(shadow, image_at(handle));
}

SIMGPU_RUNTIME_EXPORT void __cudaRegisterManagedVar(void** handle, void** pointer, char*, const char* name, int,
                                                    std::size_t, int, int) {
  const std::lock_guard lock(registry().mutex);
  image_at(handle)->variables.emplace(pointer, Variable{name, true, pointer});
  registry().image_of.emplace(pointer, image_at(handle));
}

SIMGPU_RUNTIME_EXPORT char __cudaInitModule(void** handle) {
  if (make_ready() != cudaSuccess) return 0;
  const std::lock_guard lock(registry().mutex);
  return load(*image_at(handle)) == cudaSuccess;
}

SIMGPU_RUNTIME_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes,
                                                           struct CUstream_st* stream) {
  configurations().push_back({grid, block, shared_bytes, stream});
  return 0;
}

SIMGPU_RUNTIME_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes,
                                                             void* stream) {
  if (configurations().empty()) return remember(cudaErrorMissingConfiguration);
  const Configuration top = configurations().back();
  configurations().pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

SIMGPU_RUNTIME_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  return run([&](const Driver&) {
    CUkernel found = nullptr;
    const cudaError_t error = find_kernel(stub, &found);
    *kernel = reinterpret_cast<cudaKernel_t>(found);
    return error;
  });
}
