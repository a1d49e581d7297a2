// cuda.h as a driver needs it: old and new ABI of each function declared under their own names, and exported.
#pragma once

// Without it the header's macros rename every definition of an old ABI to the newest one.
#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#include <cudaProfiler.h>
#pragma GCC visibility pop

// For exports that cuda.h declares only when compiled for the per-thread default stream (_ptsz, _ptds).
#define SIMGPU_EXPORT extern "C" __attribute__((visibility("default")))
