// A simulated GPU for one test: the environment, cuInit, a context, a module.
//
// The driver is a singleton of the process, and ctest gives each TEST a process of its own.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>  // setenv

#include <cstdint>
#include <string>

#include "tests/simgpu/driver/cuda_api.hpp"
#include "tests/simgpu/simgpu.h"
#include "tests/unit/simgpu/driver_image.hpp"

namespace driver_test {

inline void set_environment(const char* name, const std::string& value) {
  ASSERT_EQ(setenv(name, value.c_str(), 1), 0);
}

// SIMGPU_CAPACITY = 64 MiB unless set before, then cuInit and the primary context of device 0.
class Gpu {
 public:
  Gpu() {
    setenv("SIMGPU_CAPACITY", "64MiB", 0);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
  }

  [[nodiscard]] CUcontext context() const { return context_; }

  static CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  static CUdeviceptr allocate_managed(std::size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    return address;
  }
  static CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream handle = nullptr;
    EXPECT_EQ(cuStreamCreate(&handle, flags), CUDA_SUCCESS);
    return handle;
  }
  static CUmodule module(const Image& image) {
    CUmodule handle = nullptr;
    EXPECT_EQ(cuModuleLoadData(&handle, image.data()), CUDA_SUCCESS);
    return handle;
  }
  static CUfunction function(CUmodule module, const char* name) {
    CUfunction handle = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&handle, module, name), CUDA_SUCCESS);
    return handle;
  }
  static simgpu_stats stats() {
    simgpu_stats figures;
    simgpu_get_stats(&figures);
    return figures;
  }
  static CUresult launch(CUfunction function, void** parameters, CUstream stream = nullptr, void** extra = nullptr) {
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, extra);
  }

 private:
  CUcontext context_ = nullptr;
};

}  // namespace driver_test
