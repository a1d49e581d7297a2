// Loaded code: what a module or library holds, and what a test registered for its kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simgpu/driver/cuda_api.hpp"
#include "tests/simgpu/driver/fatbin.hpp"
#include "tests/simgpu/simgpu.h"

namespace hmshim::simgpu {

// What a test registered for a mangled name, before or after the name was loaded. Lives for ever.
struct Registration {
  std::string kernel;
  std::atomic<simgpu_body> body{nullptr};
  std::atomic<simgpu_describe> describe{nullptr};
};
[[nodiscard]] Registration& registration_of(std::string_view kernel);

// One kernel of a loaded image.
struct Code {
  KernelImage image;
  std::vector<std::size_t> parameter_bytes;
  std::uint32_t argument_bytes = 0;  // to the end of the last parameter
  Registration* registration = nullptr;
};

// Programs are kept until exit, unloaded or not: launches in flight and graphs name their kernels.
struct Program {
  std::vector<Code> kernels;  // sorted by name
  std::vector<GlobalImage> globals;

  [[nodiscard]] const Code* find_kernel(std::string_view name) const noexcept;
  [[nodiscard]] const GlobalImage* find_global(std::string_view name) const noexcept;
};

struct Module {
  CUcontext context = nullptr;
  const Program* program = nullptr;
  CUlibrary library = nullptr;  // null for a module that the guest loaded
  std::map<const Code*, CUfunction> functions;
  std::map<std::string, CUdeviceptr, std::less<>> globals;  // allocated when first asked for
};

struct Library {
  const Program* program = nullptr;
  std::map<const Code*, CUkernel> kernels;
  std::map<CUcontext, CUmodule> modules;                    // loaded when first needed in a context
  std::map<std::string, CUdeviceptr, std::less<>> managed;  // __managed__ variables, one for all contexts
};

struct Function {
  CUmodule module = nullptr;
  CUcontext context = nullptr;
  const Code* code = nullptr;
  std::map<CUfunction_attribute, int> settings;
};

struct LibraryKernel {
  CUlibrary library = nullptr;
  const Code* code = nullptr;
  std::map<CUfunction_attribute, int> settings;
};

}  // namespace hmshim::simgpu
