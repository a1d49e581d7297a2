// The kernels of sum.hpp for the simulated GPU.
#include "tests/guests/host_body.hpp"
#include "tests/guests/sum.hpp"

namespace {

void sum(float* out, const float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

void sum_struct(guests::SumArguments arguments) { sum(arguments.out, arguments.a, arguments.b, arguments.count); }

}  // namespace

extern "C" void simgpu_kernels() {
  simgpu_register("guest_sum", guests::body<sum>);
  simgpu_register("guest_sum_struct", guests::body<sum_struct>);
}
