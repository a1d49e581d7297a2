// Stream capture: its rules, and what a call becomes inside one.
//
// Rules from the driver API reference (cuStreamBeginCapture, cuThreadExchangeStreamCaptureMode): a call that breaks one
// fails and invalidates the capture; an invalidated capture fails every call until cuStreamEndCapture.
#pragma once

#include <cstdint>
#include <set>
#include <thread>

#include "tests/simgpu/driver/driver.hpp"
#include "tests/simgpu/driver/work.hpp"

namespace hmshim::simgpu {

struct Capture {
  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id owner;
  Stream* origin = nullptr;
  int device = 0;
  CUgraph graph = nullptr;
  bool is_graph_borrowed = false;  // cuStreamBeginCaptureToGraph
  bool is_invalid = false;
  std::set<Stream*> streams;  // origin and those that joined through an event
};

// For calls that may synchronise or allocate ("potentially unsafe"): CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the
// captures concerned become invalid, where the calling thread's capture mode forbids them.
[[nodiscard]] CUresult check_unsafe_call();
// For waiting on or querying a stream or a whole device.
[[nodiscard]] CUresult check_synchronize_stream(Stream& stream);
[[nodiscard]] CUresult check_synchronize_context(int device);
// For work that a capture cannot hold (prefetch, discard, callbacks): invalidates the stream's capture.
[[nodiscard]] CUresult refuse_capture(Stream& stream);
// The legacy stream would wait for every blocking stream, one of which captures.
[[nodiscard]] CUresult check_legacy_stream(const Stream& stream);

// The slow path of submit(): appends `work` to the stream's capture and returns its node.
[[nodiscard]] CUresult append(Stream& stream, Work work, CUgraphNode* node = nullptr);
// A record or wait that touches a capture; false where none is concerned and the model is to be asked.
[[nodiscard]] bool capture_record(Stream& stream, Event& event, CUresult* result);
[[nodiscard]] bool capture_wait(Stream& stream, Event& event, CUresult* result);
// Waiting on or querying an event that a running capture recorded: CUDA_ERROR_CAPTURED_EVENT.
[[nodiscard]] CUresult check_captured_event(const Event& event);

}  // namespace hmshim::simgpu
