// Leaves everything to the driver: plain unified memory, as XLA (TF_FORCE_UNIFIED_MEMORY), llama.cpp
// (GGML_CUDA_ENABLE_UNIFIED_MEMORY) and nvshare have it. Data comes in by faults and goes by the driver's own list,
// which is in the order of migrations, not of uses (nvidia-uvm, uvm_pmm_gpu.c).
#include <memory>

#include "policy/policy.hpp"

namespace hmshim::policy {
namespace {

class Driver final : public Policy {
 public:
  void before_launch(const Extents&, const Demand&, Actions&) override {}
};

}  // namespace

std::unique_ptr<Policy> make_driver() { return std::make_unique<Driver>(); }

}  // namespace hmshim::policy
