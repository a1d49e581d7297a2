// Stream capture and graphs: watched only to keep out of the way. The kernels inside a replayed graph are not seen one
// by one.
#include "interpose/handlers.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/shim.hpp"

namespace hmshim::interpose {

namespace {

CUresult began(CUresult result, CUstream stream) noexcept {
  if (result == CUDA_SUCCESS) contain([&] { Shim::get().captures.began(stream); });
  return result;
}

CUresult ended(CUresult result, CUstream stream) noexcept {
  contain([&] { Shim::get().captures.may_have_ended(stream, Shim::get().driver); });
  return result;
}

}  // namespace

CUresult on_cuStreamBeginCapture(CUstream stream) {
  return began(real().cuStreamBeginCapture(stream), stream_of_legacy(stream));
}
CUresult on_cuStreamBeginCapture_ptsz(CUstream stream) {
  return began(real().cuStreamBeginCapture_ptsz(stream), stream_of_ptsz(stream));
}
CUresult on_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return began(real().cuStreamBeginCapture_v2(stream, mode), stream_of_legacy(stream));
}
CUresult on_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return began(real().cuStreamBeginCapture_v2_ptsz(stream, mode), stream_of_ptsz(stream));
}
CUresult on_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                        const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return began(real().cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode),
               stream_of_legacy(stream));
}
CUresult on_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                             const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return began(real().cuStreamBeginCaptureToGraph_ptsz(stream, graph, dependencies, edges, count, mode),
               stream_of_ptsz(stream));
}

CUresult on_cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return ended(real().cuStreamEndCapture(stream, graph), stream_of_legacy(stream));
}
CUresult on_cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return ended(real().cuStreamEndCapture_ptsz(stream, graph), stream_of_ptsz(stream));
}

CUresult on_cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  Shim::get().bypasses.count(Bypass::graph_launch);
  Shim::get().pools.note_work(stream_of_legacy(stream));
  return real().cuGraphLaunch(graph, stream);
}
CUresult on_cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  Shim::get().bypasses.count(Bypass::graph_launch);
  Shim::get().pools.note_work(stream_of_ptsz(stream));
  return real().cuGraphLaunch_ptsz(graph, stream);
}

}  // namespace hmshim::interpose
