#pragma once
// Lets an ordinary function be a kernel's body on the simulated GPU: body<f> reads f's parameters out of a launch.
#include <cstddef>
#include <cstring>
#include <utility>

#include "tests/simgpu/simgpu.h"

namespace guests {

template <typename Parameter>
Parameter parameter(const simgpu_launch* launch, std::size_t index) {
  Parameter value;
  std::memcpy(&value, launch->parameters[index], sizeof(value));
  return value;
}

template <typename... Parameters, std::size_t... Index>
void call(void (*kernel)(Parameters...), const simgpu_launch* launch, std::index_sequence<Index...>) {
  kernel(parameter<Parameters>(launch, Index)...);
}

template <typename... Parameters>
void call(void (*kernel)(Parameters...), const simgpu_launch* launch) {
  call(kernel, launch, std::index_sequence_for<Parameters...>{});
}

template <auto kKernel>
void body(const simgpu_launch* launch) {
  call(kKernel, launch);
}

}  // namespace guests
