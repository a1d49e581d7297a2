#include "tests/simgpu/driver/capture.hpp"

#include <algorithm>
#include <map>
#include <memory>

#include "tests/simgpu/driver/flavours.hpp"
#include "tests/simgpu/driver/graph.hpp"

namespace hmshim::simgpu {
namespace {

// Captures that were begun and not ended. The map is guarded by Driver::mutex; the count spares every other call the
// lock.
std::map<std::uint64_t, std::unique_ptr<Capture>> g_captures;
std::atomic<std::size_t> g_capture_count{0};

bool any_capture() { return g_capture_count.load(std::memory_order_relaxed) != 0; }

CUresult refuse(Capture& capture) {
  capture.is_invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

// The capture that an event was recorded in, while it lasts. The caller holds Driver::mutex.
Capture* capture_of(const Event& event) {
  const auto found = g_captures.find(event.capture_id);
  return found == g_captures.end() ? nullptr : found->second.get();
}

CUresult begin(Call call, CUstream handle, CUstreamCaptureMode mode, CUgraph graph,
               std::vector<CUgraphNode> dependencies) {
  return in_context(call, [&](const Context&) -> CUresult {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (stream->is_legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const std::lock_guard lock(driver().mutex);
    if (stream->capture.load() != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_unique<Capture>();
    capture->id = driver().next_id++;
    capture->mode = mode;
    capture->owner = std::this_thread::get_id();
    capture->origin = stream;
    capture->device = stream->device;
    capture->is_graph_borrowed = graph != nullptr;
    capture->graph = graph != nullptr ? graph : make_graph();
    capture->streams.insert(stream);
    stream->tail = std::move(dependencies);
    stream->capture.store(capture.get(), std::memory_order_release);
    g_captures.emplace(capture->id, std::move(capture));
    g_capture_count.fetch_add(1, std::memory_order_relaxed);
    return CUDA_SUCCESS;
  });
}

// Whether everything captured leads back to the origin: each joined stream's last node is an ancestor of, or is, one of
// the origin's last nodes.
bool is_joined(const Capture& capture) {
  std::set<CUgraphNode> reached;
  std::vector<CUgraphNode> open(capture.origin->tail);
  while (!open.empty()) {
    const CUgraphNode node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    const auto& dependencies = dependencies_of(node);
    open.insert(open.end(), dependencies.begin(), dependencies.end());
  }
  return std::ranges::all_of(capture.streams, [&](const Stream* stream) {
    return std::ranges::all_of(stream->tail, [&](CUgraphNode node) { return reached.contains(node); });
  });
}

CUresult end(Call call, CUstream handle, CUgraph* out) {
  return in_context(call, [=](const Context&) -> CUresult {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = nullptr;
    const std::lock_guard lock(driver().mutex);
    Capture* capture = stream->capture.load();
    if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->owner != std::this_thread::get_id()) {
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    CUresult result = CUDA_SUCCESS;
    if (capture->is_invalid) {
      result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (!is_joined(*capture)) {
      result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    if (result == CUDA_SUCCESS) {
      *out = capture->graph;
    } else if (!capture->is_graph_borrowed) {
      destroy_graph(capture->graph);
    }
    for (Stream* member : capture->streams) {
      member->capture.store(nullptr, std::memory_order_release);
      member->tail.clear();
    }
    g_captures.erase(capture->id);
    g_capture_count.fetch_sub(1, std::memory_order_relaxed);
    return result;
  });
}

// All outputs but `status` are optional, and set only while the capture is active.
CUresult info(Call call, CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
              const CUgraphNode** dependencies, const CUgraphEdgeData** edges, std::size_t* count) {
  return in_context(call, [=](const Context&) -> CUresult {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (stream->is_legacy) {
      if (const CUresult result = check_legacy_stream(*stream); result != CUDA_SUCCESS) return result;
    }
    const std::lock_guard lock(driver().mutex);
    const Capture* capture = stream->capture.load();
    *status = capture == nullptr    ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    if (id != nullptr) *id = capture->id;
    if (graph != nullptr) *graph = capture->graph;
    if (dependencies != nullptr) *dependencies = stream->tail.data();
    if (edges != nullptr) *edges = nullptr;  // no edge carries data
    if (count != nullptr) *count = stream->tail.size();
    return CUDA_SUCCESS;
  });
}

CUresult update(Call call, CUstream handle, const CUgraphNode* dependencies, std::size_t count, unsigned flags) {
  return in_context(call, [=](const Context&) -> CUresult {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count != 0 && dependencies == nullptr))
      return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(driver().mutex);
    if (stream->capture.load() == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->tail.clear();
    stream->tail.insert(stream->tail.end(), dependencies, dependencies + count);
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult check_unsafe_call() {
  if (!any_capture() || thread().capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  const std::lock_guard lock(driver().mutex);
  CUresult result = CUDA_SUCCESS;
  for (auto& [id, capture] : g_captures) {
    const bool is_mine =
        capture->owner == std::this_thread::get_id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool is_everyones =
        thread().capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (is_mine || is_everyones) result = refuse(*capture);
  }
  return result;
}

CUresult check_synchronize_stream(Stream& stream) {
  if (!any_capture()) return CUDA_SUCCESS;
  if (stream.is_legacy) {
    if (const CUresult result = check_legacy_stream(stream); result != CUDA_SUCCESS) return result;
  }
  if (stream.capture.load() != nullptr) return refuse_capture(stream);
  return check_unsafe_call();
}

CUresult check_synchronize_context(int device) {
  if (!any_capture()) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  {
    const std::lock_guard lock(driver().mutex);
    for (auto& [id, capture] : g_captures) {
      if (capture->device == device) result = refuse(*capture);
    }
  }
  return result == CUDA_SUCCESS ? check_unsafe_call() : result;
}

CUresult refuse_capture(Stream& stream) {
  const std::lock_guard lock(driver().mutex);
  Capture* capture = stream.capture.load();
  return capture == nullptr ? CUDA_SUCCESS : refuse(*capture);
}

CUresult check_legacy_stream(const Stream& stream) {
  if (!any_capture()) return CUDA_SUCCESS;
  const std::lock_guard lock(driver().mutex);
  CUresult result = CUDA_SUCCESS;
  for (auto& [id, capture] : g_captures) {
    const bool is_blocking = std::ranges::any_of(capture->streams, [&](const Stream* s) {
      return s->context == stream.context && s->flags == CU_STREAM_DEFAULT;
    });
    if (!is_blocking) continue;
    capture->is_invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

CUresult append(Stream& stream, Work work, CUgraphNode* node) {
  const std::lock_guard lock(driver().mutex);
  Capture* capture = stream.capture.load();
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;  // ended by another thread since the caller looked
  if (capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  const CUgraphNode added = add_node(capture->graph, std::move(work), stream.tail);
  stream.tail = {added};
  if (node != nullptr) *node = added;
  return CUDA_SUCCESS;
}

bool capture_record(Stream& stream, Event& event, CUresult* result) {
  if (!any_capture()) return false;
  if (stream.is_legacy) {
    *result = check_legacy_stream(stream);
    if (*result != CUDA_SUCCESS) return true;
  }
  const std::lock_guard lock(driver().mutex);
  const Capture* capture = stream.capture.load();
  if (capture == nullptr) {
    event.capture_id = 0;
    return false;
  }
  *result = capture->is_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  event.capture_id = capture->id;
  event.captured_tail = stream.tail;
  return true;
}

bool capture_wait(Stream& stream, Event& event, CUresult* result) {
  if (!any_capture()) return false;
  const std::lock_guard lock(driver().mutex);
  Capture* const own = stream.capture.load();
  Capture* const other = capture_of(event);
  if (own == nullptr && other == nullptr) return false;
  *result = CUDA_SUCCESS;
  if (other == nullptr) {
    own->is_invalid = true;
    *result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  } else if (own != nullptr && own != other) {
    own->is_invalid = other->is_invalid = true;
    *result = CUDA_ERROR_STREAM_CAPTURE_MERGE;
  } else if (stream.is_legacy) {
    other->is_invalid = true;
    *result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  } else if (other->is_invalid) {
    *result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else {
    if (own == nullptr) {
      stream.tail.clear();
      other->streams.insert(&stream);
      stream.capture.store(other, std::memory_order_release);
    }
    for (const CUgraphNode node : event.captured_tail) {
      if (std::ranges::find(stream.tail, node) == stream.tail.end()) stream.tail.push_back(node);
    }
  }
  return true;
}

CUresult check_captured_event(const Event& event) {
  if (!any_capture()) return CUDA_SUCCESS;
  const std::lock_guard lock(driver().mutex);
  Capture* capture = capture_of(event);
  if (capture == nullptr) return CUDA_SUCCESS;
  capture->is_invalid = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

SIMGPU_BOTH(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
            begin(kCall, on(stream), mode, nullptr, {}))
SIMGPU_BOTH(cuStreamBeginCaptureToGraph,
            (CUstream stream, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData*, size_t count,
             CUstreamCaptureMode mode),
            !is_graph(graph) ? CUDA_ERROR_INVALID_VALUE
                             : begin(kCall, on(stream), mode, graph, {dependencies, dependencies + count}))
SIMGPU_BOTH(cuStreamEndCapture, (CUstream stream, CUgraph* graph), end(kCall, on(stream), graph))
SIMGPU_BOTH(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* status),
            info(kCall, on(stream), status, nullptr, nullptr, nullptr, nullptr, nullptr))
SIMGPU_BOTH(cuStreamGetCaptureInfo_v2,
            (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
             const CUgraphNode** dependencies, size_t* count),
            info(kCall, on(stream), status, id, graph, dependencies, nullptr, count))
SIMGPU_BOTH(cuStreamGetCaptureInfo_v3,
            (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
             const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count),
            info(kCall, on(stream), status, id, graph, dependencies, edges, count))
SIMGPU_BOTH(cuStreamUpdateCaptureDependencies,
            (CUstream stream, CUgraphNode* dependencies, size_t count, unsigned flags),
            update(kCall, on(stream), dependencies, count, flags))
SIMGPU_BOTH(cuStreamUpdateCaptureDependencies_v2,
            (CUstream stream, CUgraphNode* dependencies, const CUgraphEdgeData*, size_t count, unsigned flags),
            update(kCall, on(stream), dependencies, count, flags))

extern "C" {

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return initialised(Call::cuThreadExchangeStreamCaptureMode, [=] {
    if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread().capture_mode);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
