#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/simgpu/driver_gpu.hpp"

namespace {

using namespace driver_test;

constexpr std::size_t kMiB = 1 << 20;

class Capturing {
 public:
  explicit Capturing(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL, unsigned flags = CU_STREAM_NON_BLOCKING)
      : stream(Gpu::stream(flags)) {
    EXPECT_EQ(cuStreamBeginCapture_v2(stream, mode), CUDA_SUCCESS);
  }
  CUresult end() { return cuStreamEndCapture(stream, &graph); }

  CUstream stream;
  CUgraph graph = nullptr;
};

TEST(DriverCapture, captured_work_runs_at_each_launch_of_the_graph_and_not_before) {
  const Gpu gpu;
  const CUdeviceptr counter = Gpu::allocate(4096);
  ASSERT_EQ(cuMemsetD32_v2(counter, 7, 1024), CUDA_SUCCESS);
  Capturing capture;
  ASSERT_EQ(cuMemsetD32Async(counter, 9, 1024, capture.stream), CUDA_SUCCESS);
  ASSERT_EQ(capture.end(), CUDA_SUCCESS);
  unsigned value = 0;
  ASSERT_EQ(cuMemcpyDtoH_v2(&value, counter, 4), CUDA_SUCCESS);
  EXPECT_EQ(value, 7U);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, capture.graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, capture.stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(capture.stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoH_v2(&value, counter, 4), CUDA_SUCCESS);
  EXPECT_EQ(value, 9U);
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(capture.graph), CUDA_SUCCESS);
  EXPECT_EQ(Gpu::stats().live_graphs, 0U);
}

TEST(DriverCapture, an_allocation_during_a_global_capture_fails_and_spoils_it) {
  const Gpu gpu;
  Capturing capture;
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, kMiB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUstreamCaptureStatus status{};
  EXPECT_EQ(cuStreamIsCapturing(capture.stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cuMemsetD8Async(0, 0, 0, capture.stream), CUDA_SUCCESS);  // nothing to do, nothing to capture
  EXPECT_EQ(capture.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(capture.graph, nullptr);
  EXPECT_EQ(cuMemAlloc_v2(&address, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(Gpu::stats().live_graphs, 0U);
}

TEST(DriverCapture, relaxed_mode_allows_what_global_mode_forbids) {
  const Gpu gpu;
  Capturing capture;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(capture.end(), CUDA_SUCCESS);
}

TEST(DriverCapture, another_thread_is_bound_by_a_global_capture_but_not_by_a_thread_local_one) {
  const Gpu gpu;
  const auto allocate_elsewhere = [&] {
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
      CUdeviceptr address = 0;
      EXPECT_EQ(cuCtxSetCurrent(gpu.context()), CUDA_SUCCESS);
      result = cuMemAlloc_v2(&address, kMiB);
    }).join();
    return result;
  };
  Capturing local(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EXPECT_EQ(allocate_elsewhere(), CUDA_SUCCESS);
  EXPECT_EQ(local.end(), CUDA_SUCCESS);
  Capturing global(CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(allocate_elsewhere(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(global.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST(DriverCapture, waiting_for_a_capturing_stream_fails_and_spoils_it) {
  const Gpu gpu;
  Capturing capture;
  EXPECT_EQ(cuStreamSynchronize(capture.stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(capture.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  Capturing again;
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(again.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST(DriverCapture, a_graph_cannot_hold_a_prefetch) {
  const Gpu gpu;
  const CUdeviceptr managed = Gpu::allocate_managed(2 * kMiB);
  Capturing capture;
  EXPECT_EQ(cuMemPrefetchAsync(managed, 2 * kMiB, 0, capture.stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(capture.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST(DriverCapture, the_legacy_stream_stays_out_of_a_blocking_streams_capture) {
  const Gpu gpu;
  const CUdeviceptr address = Gpu::allocate(4096);
  Capturing capture(CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_DEFAULT);
  EXPECT_EQ(cuMemsetD8Async(address, 0, 1, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(capture.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUevent make_event() {
  CUevent event = nullptr;
  EXPECT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  return event;
}

TEST(DriverCapture, a_stream_joins_by_an_event_and_must_join_back) {
  const Gpu gpu;
  const CUdeviceptr address = Gpu::allocate(4096);
  const CUstream side = Gpu::stream();
  const CUevent fork = make_event();
  const CUevent join = make_event();
  for (const bool joins : {true, false}) {
    SCOPED_TRACE(joins);
    Capturing capture;
    ASSERT_EQ(cuMemsetD8Async(address, 1, 16, capture.stream), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(fork, capture.stream), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(side, fork, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemsetD8Async(address, 2, 16, side), CUDA_SUCCESS);
    if (joins) {
      ASSERT_EQ(cuEventRecord(join, side), CUDA_SUCCESS);
      ASSERT_EQ(cuStreamWaitEvent(capture.stream, join, 0), CUDA_SUCCESS);
    }
    EXPECT_EQ(capture.end(), joins ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  }
}

TEST(DriverCapture, an_event_that_a_capture_recorded_cannot_be_queried) {
  const Gpu gpu;
  const CUevent event = make_event();
  Capturing capture;
  ASSERT_EQ(cuEventRecord(event, capture.stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(capture.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST(DriverCapture, an_event_from_outside_may_not_order_captured_work) {
  const Gpu gpu;
  const CUevent event = make_event();
  ASSERT_EQ(cuEventRecord(event, nullptr), CUDA_SUCCESS);
  Capturing capture;
  EXPECT_EQ(cuStreamWaitEvent(capture.stream, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(capture.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST(DriverCapture, only_the_origin_ends_a_capture_and_only_on_its_thread) {
  const Gpu gpu;
  EXPECT_EQ(cuStreamEndCapture(Gpu::stream(), nullptr), CUDA_ERROR_INVALID_VALUE);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(Gpu::stream(), &graph), CUDA_ERROR_ILLEGAL_STATE);
  Capturing capture;
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(gpu.context()), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(capture.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  }).join();
  EXPECT_EQ(capture.end(), CUDA_SUCCESS);
}

TEST(DriverCapture, kernel_nodes_give_their_arguments_back_and_take_new_ones) {
  const Gpu gpu;
  static long seen;
  seen = 0;
  simgpu_register(
      "k", [](const simgpu_launch* launch) { seen = seen * 10 + *static_cast<const long*>(launch->parameters[0]); });
  const Image image = make_cubin("k", {{0, 8}});
  const CUfunction function = Gpu::function(Gpu::module(image), "k");
  long argument = 1;
  void* parameters[] = {&argument};
  Capturing capture;
  ASSERT_EQ(Gpu::launch(function, parameters, capture.stream), CUDA_SUCCESS);
  ASSERT_EQ(capture.end(), CUDA_SUCCESS);
  argument = 5;
  CUgraphNode node = nullptr;
  std::size_t count = 1;
  ASSERT_EQ(cuGraphGetNodes(capture.graph, &node, &count), CUDA_SUCCESS);
  ASSERT_EQ(count, 1U);
  CUDA_KERNEL_NODE_PARAMS given{};
  ASSERT_EQ(cuGraphKernelNodeGetParams_v2(node, &given), CUDA_SUCCESS);
  EXPECT_EQ(given.func, function);
  EXPECT_EQ(*static_cast<long*>(given.kernelParams[0]), 1);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, capture.graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
  given.kernelParams = parameters;
  ASSERT_EQ(cuGraphExecKernelNodeSetParams_v2(exec, node, &given), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(seen, 15);
}

TEST(DriverCapture, edges_decide_the_order_and_cycles_do_not_instantiate) {
  const Gpu gpu;
  static std::string order;
  order.clear();
  CUgraph graph = nullptr;
  ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  const auto add = [&](const char* name) {
    CUgraphNode node = nullptr;
    const CUDA_HOST_NODE_PARAMS parameters{[](void* data) { order += static_cast<const char*>(data); },
                                           const_cast<char*>(name)};
    EXPECT_EQ(cuGraphAddHostNode(&node, graph, nullptr, 0, &parameters), CUDA_SUCCESS);
    return node;
  };
  const CUgraphNode last = add("b");
  const CUgraphNode first = add("a");
  ASSERT_EQ(cuGraphAddDependencies(graph, &first, &last, 1), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(order, "ab");
  ASSERT_EQ(cuGraphAddDependencies(graph, &last, &first, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
