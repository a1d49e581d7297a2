// The kernels of tensor_churn.cu for the simulated GPU, with the bytes that they touch: tensors lie in slabs, so the
// driver does not know where they end.
#include <cstdint>

#include "tests/guests/host_body.hpp"
#include "tests/guests/tensor_churn.hpp"

namespace {

template <int kKind>
void describe(const simgpu_launch* launch, simgpu_footprint* footprint) {
  const auto words = guests::parameter<std::size_t>(launch, 1);
  simgpu_touch(footprint, guests::parameter<std::uint64_t>(launch, 0), words * sizeof(churn::Word), kKind);
}

}  // namespace

extern "C" void simgpu_kernels() {
  simgpu_register("churn_fill", guests::body<churn::fill>);
  simgpu_register("churn_check", guests::body<churn::check>);
  simgpu_register_footprint("churn_fill", describe<SIMGPU_WRITE>);
  simgpu_register_footprint("churn_check", describe<SIMGPU_READ>);
}
