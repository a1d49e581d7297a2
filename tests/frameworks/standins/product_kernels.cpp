// The footprint of the stand-ins' kernel: its operands, for as long as its operations take.
#include <cstring>

#include "tests/frameworks/standins/product_arguments.hpp"
#include "tests/simgpu/simgpu.h"

namespace {

using hmshim::frameworks::Operand;
using hmshim::frameworks::ProductArguments;

void describe(const simgpu_launch* launch, simgpu_footprint* footprint) {
  ProductArguments arguments;
  std::memcpy(&arguments, launch->parameters[0], sizeof arguments);
  for (const Operand& operand : arguments.operands) {
    if (operand.address != 0) simgpu_touch(footprint, operand.address, operand.bytes, static_cast<int>(operand.kind));
  }
  simgpu_set_duration_ns(footprint, static_cast<int64_t>(arguments.operations / arguments.operations_per_ns));
}

}  // namespace

extern "C" void simgpu_kernels(void) { simgpu_register_footprint("standin_product", describe); }
