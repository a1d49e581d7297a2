// Streams, events and stream capture.
#include "tests/simgpu/runtime/runtime.hpp"

namespace {

using namespace hmshim::simgpu::runtime;

// cudaStreamCallback_t takes a cudaError_t where CUstreamCallback takes a CUresult: the same numbers.
CUstreamCallback as_driver(cudaStreamCallback_t callback) { return reinterpret_cast<CUstreamCallback>(callback); }

CUresult capture_info(const Driver& cu, cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                      cudaGraph_t* graph, const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                      size_t* count) {
  CUstreamCaptureStatus found{};
  cuuint64_t found_id = 0;
  static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData));
  const CUresult result =
      cu.cuStreamGetCaptureInfo_(stream, status == nullptr ? nullptr : &found, &found_id, graph, dependencies,
                                 reinterpret_cast<const CUgraphEdgeData**>(edges), count);
  if (result != CUDA_SUCCESS) return result;
  *status = static_cast<cudaStreamCaptureStatus>(found);
  if (id != nullptr && found == CU_STREAM_CAPTURE_STATUS_ACTIVE) *id = found_id;
  return CUDA_SUCCESS;
}

}  // namespace

SIMGPU_RUNTIME_BOTH(cudaStreamSynchronize, _ptsz, (cudaStream_t stream), { return cu.cuStreamSynchronize_(stream); })
SIMGPU_RUNTIME_BOTH(cudaStreamQuery, _ptsz, (cudaStream_t stream), { return cu.cuStreamQuery_(stream); })
SIMGPU_RUNTIME_BOTH(cudaStreamWaitEvent, _ptsz, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
                    { return cu.cuStreamWaitEvent_(stream, event, flags); })
SIMGPU_RUNTIME_BOTH(cudaStreamAddCallback, _ptsz,
                    (cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned flags),
                    { return cu.cuStreamAddCallback_(stream, as_driver(callback), data, flags); })
SIMGPU_RUNTIME_BOTH(cudaStreamGetFlags, _ptsz, (cudaStream_t stream, unsigned* flags),
                    { return cu.cuStreamGetFlags_(stream, flags); })
SIMGPU_RUNTIME_BOTH(cudaStreamGetPriority, _ptsz, (cudaStream_t stream, int* priority),
                    { return cu.cuStreamGetPriority_(stream, priority); })
SIMGPU_RUNTIME_BOTH(cudaStreamGetId, _ptsz, (cudaStream_t stream, unsigned long long* id),
                    { return cu.cuStreamGetId_(stream, id); })
SIMGPU_RUNTIME_BOTH(cudaStreamGetDevice, _ptsz, (cudaStream_t stream, int* device),
                    { return cu.cuStreamGetDevice_(stream, device); })
SIMGPU_RUNTIME_BOTH(cudaEventRecord, _ptsz, (cudaEvent_t event, cudaStream_t stream),
                    { return cu.cuEventRecord_(event, stream); })
SIMGPU_RUNTIME_BOTH(cudaEventRecordWithFlags, _ptsz, (cudaEvent_t event, cudaStream_t stream, unsigned flags),
                    { return cu.cuEventRecordWithFlags_(event, stream, flags); })

SIMGPU_RUNTIME_BOTH(cudaStreamBeginCapture, _ptsz, (cudaStream_t stream, cudaStreamCaptureMode mode),
                    { return cu.cuStreamBeginCapture_(stream, static_cast<CUstreamCaptureMode>(mode)); })
SIMGPU_RUNTIME_BOTH(cudaStreamEndCapture, _ptsz, (cudaStream_t stream, cudaGraph_t* graph),
                    { return cu.cuStreamEndCapture_(stream, graph); })
SIMGPU_RUNTIME_BOTH(cudaStreamIsCapturing, _ptsz, (cudaStream_t stream, cudaStreamCaptureStatus* status),
                    { return cu.cuStreamIsCapturing_(stream, reinterpret_cast<CUstreamCaptureStatus*>(status)); })
SIMGPU_RUNTIME_BOTH(cudaStreamGetCaptureInfo, _ptsz,
                    (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                     const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges, size_t* count),
                    { return capture_info(cu, stream, status, id, graph, dependencies, edges, count); })
SIMGPU_RUNTIME_BOTH(cudaStreamUpdateCaptureDependencies, _ptsz,
                    (cudaStream_t stream, cudaGraphNode_t* dependencies, const cudaGraphEdgeData* edges, size_t count,
                     unsigned flags),
                    {
                      return cu.cuStreamUpdateCaptureDependencies_(
                          stream, dependencies, reinterpret_cast<const CUgraphEdgeData*>(edges), count, flags);
                    })

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return run([=](const Driver& cu) { return cu.cuStreamCreateWithPriority_(stream, flags, priority); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return run([=](const Driver& cu) { return cu.cuStreamDestroy_(stream); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return run([=](const Driver& cu) { return cu.cuEventCreate_(event, flags); });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return run([=](const Driver& cu) { return cu.cuEventDestroy_(event); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return run([=](const Driver& cu) { return cu.cuEventSynchronize_(event); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return run([=](const Driver& cu) { return cu.cuEventQuery_(event); });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return run([=](const Driver& cu) { return cu.cuEventElapsedTime_(milliseconds, start, end); });
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return run([=](const Driver& cu) {
    return cu.cuThreadExchangeStreamCaptureMode_(reinterpret_cast<CUstreamCaptureMode*>(mode));
  });
}

}  // extern "C"
