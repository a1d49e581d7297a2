// Kernels that stand for those of a trace. Only their names and parameters matter: what a launch does on the simulated
// GPU is said by its arguments.
#include "bench/replay_kernels.hpp"

using namespace hmshim::bench;

extern "C" __global__ void replay_few(ReplayArguments<kFewOperands>) {}
extern "C" __global__ void replay_some(ReplayArguments<kSomeOperands>) {}
extern "C" __global__ void replay_most(ReplayArguments<kMostOperands>) {}
