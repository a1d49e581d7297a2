#include "bench/replay_guest.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "bench/replay_kernels.hpp"

namespace hmshim::bench {
namespace {

void check(CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  throw std::runtime_error(what + ": " + (name != nullptr ? name : "unknown CUresult"));
}

// All sizes of ReplayArguments begin alike.
void describe(const simgpu_launch* launch, simgpu_footprint* footprint) {
  const auto* arguments = static_cast<const ReplayArguments<1>*>(launch->parameters[0]);
  simgpu_set_duration_ns(footprint, arguments->duration_ns);
  constexpr std::uint64_t kBytesMask = (std::uint64_t{1} << kReplayKindShift) - 1;
  for (std::uint64_t i = 0; i < arguments->operand_count; ++i) {
    const ReplayOperand& operand = arguments->operands[i];
    simgpu_touch(footprint, operand.address, operand.bytes_and_kind & kBytesMask,
                 static_cast<int>(operand.bytes_and_kind >> kReplayKindShift));
  }
}

class Player {
 public:
  Player(const Trace& trace, Allocator allocator, const std::string& kernel_image_path);
  void play_iteration();

 private:
  void allocate(std::uint32_t tensor);
  void free(std::uint32_t tensor);
  void launch(const TraceLaunch& launch);
  void launch_part(const TraceLaunch& launch, std::span<const TraceOperand> operands, std::uint64_t duration_ns);

  const Trace& trace_;
  const Allocator allocator_;
  CUfunction few_ = nullptr;
  CUfunction some_ = nullptr;
  CUfunction most_ = nullptr;
  std::vector<CUdeviceptr> addresses_;  // by tensor; 0: not alive
};

Player::Player(const Trace& trace, Allocator allocator, const std::string& kernel_image_path)
    : trace_(trace), allocator_(allocator), addresses_(trace.tensors.size()) {
  check(cuInit(0), "cuInit");
  CUcontext context = nullptr;
  check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  CUmodule module = nullptr;
  check(cuModuleLoad(&module, kernel_image_path.c_str()), "cuModuleLoad of " + kernel_image_path);
  const auto load = [&](CUfunction& function, const char* name) {
    simgpu_register_footprint(name, describe);
    check(cuModuleGetFunction(&function, module, name), std::string("cuModuleGetFunction of ") + name);
  };
  load(few_, "replay_few");
  load(some_, "replay_some");
  load(most_, "replay_most");

  std::vector<bool> is_touched(trace.tensors.size());
  for (const TraceLaunch& launch : trace.launches) {
    for (const TraceOperand& operand : launch.operands) is_touched[operand.tensor] = true;
  }
  for (std::uint32_t tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (trace.tensors[tensor].is_weight && is_touched[tensor]) allocate(tensor);
  }
}

void Player::play_iteration() {
  for (const TraceStep& step : trace_.steps) {
    switch (step.kind) {
      case TraceStep::Kind::Birth:
        allocate(step.index);
        break;
      case TraceStep::Kind::Death:
        free(step.index);
        break;
      case TraceStep::Kind::Launch:
        launch(trace_.launches[step.index]);
        break;
      case TraceStep::Kind::Wait:
        check(cuStreamSynchronize(nullptr), "cuStreamSynchronize");
        break;
    }
  }
}

void Player::allocate(std::uint32_t tensor) {
  const std::uint64_t bytes = trace_.tensors[tensor].bytes;
  const CUresult result = allocator_ == Allocator::Async ? cuMemAllocAsync(&addresses_[tensor], bytes, nullptr)
                                                         : cuMemAlloc(&addresses_[tensor], bytes);
  if (result != CUDA_SUCCESS)
    check(result, "allocation of tensor " + std::to_string(trace_.tensors[tensor].id) + ", " + std::to_string(bytes) +
                      " bytes");
}

void Player::free(std::uint32_t tensor) {
  const CUdeviceptr address = std::exchange(addresses_[tensor], 0);
  check(allocator_ == Allocator::Async ? cuMemFreeAsync(address, nullptr) : cuMemFree(address), "free");
}

// What does not fit the arguments of one launch becomes several, each with its share of the time, as PyTorch's
// multi-tensor optimizers do it (ATen/native/cuda/MultiTensorApply.cuh).
void Player::launch(const TraceLaunch& launch) {
  const std::span<const TraceOperand> operands = launch.operands;
  if (operands.size() <= kMostOperands) {
    launch_part(launch, operands, launch.duration_ns);
    return;
  }
  for (std::size_t first = 0; first < operands.size(); first += kMostOperands) {
    const std::size_t last = std::min(first + kMostOperands, operands.size());
    const auto until = [&](std::size_t operand) { return launch.duration_ns * operand / operands.size(); };
    launch_part(launch, operands.subspan(first, last - first), until(last) - until(first));
  }
}

void Player::launch_part(const TraceLaunch& launch, std::span<const TraceOperand> operands, std::uint64_t duration_ns) {
  ReplayArguments<kMostOperands> arguments;
  std::memset(&arguments, 0, sizeof arguments);
  arguments.duration_ns = static_cast<std::int64_t>(duration_ns);
  arguments.operand_count = operands.size();
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const std::uint64_t kind = (operands[i].is_read ? SIMGPU_READ : 0) | (operands[i].is_written ? SIMGPU_WRITE : 0);
    arguments.operands[i] = {addresses_[operands[i].tensor],
                             trace_.tensors[operands[i].tensor].bytes | kind << kReplayKindShift};
  }
  const CUfunction function = operands.size() <= kFewOperands ? few_ : operands.size() <= kSomeOperands ? some_ : most_;
  // One function serves all kernels of the trace; as in a real program, the grid tells those of different names apart.
  const auto grid = static_cast<unsigned>(1 + std::hash<std::string_view>{}(launch.name) % 0xffff);
  void* parameters[] = {&arguments};
  check(cuLaunchKernel(function, grid, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr), "launch of " + launch.name);
}

simgpu_stats figures() {
  simgpu_stats stats{};
  simgpu_get_stats(&stats);
  return stats;
}

}  // namespace

std::vector<simgpu_stats> play(const Trace& trace, std::uint32_t iterations, Allocator allocator,
                               const std::string& kernel_image_path) {
  Player player(trace, allocator, kernel_image_path);
  std::vector<simgpu_stats> rows{figures()};
  for (std::uint32_t iteration = 0; iteration < iterations; ++iteration) {
    player.play_iteration();
    rows.push_back(figures());
  }
  return rows;
}

}  // namespace hmshim::bench
