// A function and its variant for the per-thread default stream, from one body.
//
// `call` is an expression that may use kCall, the Call of the variant, and on(stream), which says what NULL means in
// it.
#pragma once

#include "tests/simgpu/driver/driver.hpp"
#include "tests/simgpu/driver/work.hpp"

#define SIMGPU_FLAVOUR(symbol, parameters, default_stream, call)                                               \
  SIMGPU_EXPORT CUresult symbol parameters {                                                                   \
    constexpr ::hmshim::simgpu::Call kCall = ::hmshim::simgpu::Call::symbol;                                   \
    [[maybe_unused]] const auto on = [](CUstream given) { return given == nullptr ? default_stream : given; }; \
    return call;                                                                                               \
  }

// name and name_ptsz: asynchronous calls.
#define SIMGPU_BOTH(name, parameters, call)                \
  SIMGPU_FLAVOUR(name, parameters, CU_STREAM_LEGACY, call) \
  SIMGPU_FLAVOUR(name##_ptsz, parameters, CU_STREAM_PER_THREAD, call)

// name and name_ptds: synchronous calls, which run on on(nullptr).
#define SIMGPU_BOTH_SYNCHRONOUS(name, parameters, call)    \
  SIMGPU_FLAVOUR(name, parameters, CU_STREAM_LEGACY, call) \
  SIMGPU_FLAVOUR(name##_ptds, parameters, CU_STREAM_PER_THREAD, call)
