// Stream capture, where the library keeps out of the way, and graphs: a replay is one launch that names what all the
// graph's nodes name.
#include "interpose/graphs.hpp"
#include "interpose/handlers.hpp"
#include "interpose/operands.hpp"
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

CUresult instantiated(CUresult result, const CUgraphExec* exec, CUgraph graph) noexcept {
  if (result == CUDA_SUCCESS) contain([&] { Shim::get().graphs.instantiated(*exec, graph); });
  return result;
}

template <class Note>
CUresult changed(CUresult result, Note&& note) noexcept {
  if (result == CUDA_SUCCESS) contain([&] { note(Shim::get().graphs); });
  return result;
}

// What the library looks at, of the parameters of any version.
template <class Params>
CUDA_KERNEL_NODE_PARAMS kernel_node(const Params& params, CUkernel kern) noexcept {
  CUDA_KERNEL_NODE_PARAMS node{};
  node.func = params.func;
  node.kern = kern;
  node.gridDimX = params.gridDimX;
  node.gridDimY = params.gridDimY;
  node.gridDimZ = params.gridDimZ;
  node.blockDimX = params.blockDimX;
  node.kernelParams = params.kernelParams;
  node.extra = params.extra;
  return node;
}

// What it returns lasts as long as the launch.
TraceRecorder::Running announce(CUgraphExec exec, CUstream stream) {
  Shim& shim = Shim::get();
  if (!shim.captures.holds(stream, shim.driver)) shim.pools.note_work(stream);
  if (shim.captures.are_running()) {
    shim.bypasses.count(Bypass::launch_in_capture);
    return {};
  }
  const auto operands = shim.graphs.find(exec);
  if (operands == nullptr || !operands->is_complete) shim.bypasses.count(Bypass::graph_launch);
  if (operands == nullptr) return {};
  // A graph may name more than one launch can: then it counts as several.
  Touched touched;
  std::uint64_t part = 0;
  for (const std::uint64_t base : operands->bases) {
    touch(shim.allocations, base, touched);
    if (touched.extents().size() < policy::kMaxTouched) continue;
    shim.engines.launch(operands->signature + part, touched.extents(), stream, part > 0);
    static_cast<void>(shim.trace.launch(nullptr, shim.layouts, operands->signature + part, touched.extents(), stream));
    ++part;
    touched.clear();
  }
  if (part == 0 || !touched.extents().empty())
    shim.engines.launch(operands->signature + part, touched.extents(), stream, part > 0);
  return shim.trace.launch(nullptr, shim.layouts, operands->signature + part, touched.extents(), stream);
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

// What the driver has made of a graph is learned once it has.

#define HMSHIM_INSTANTIATE_LOGGING(symbol)                                                                         \
  CUresult on_##symbol(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* text, size_t text_bytes) { \
    return instantiated(real().symbol(exec, graph, error_node, text, text_bytes), exec, graph);                    \
  }
HMSHIM_INSTANTIATE_LOGGING(cuGraphInstantiate)
HMSHIM_INSTANTIATE_LOGGING(cuGraphInstantiate_v2)

CUresult on_cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return instantiated(real().cuGraphInstantiateWithFlags(exec, graph, flags), exec, graph);
}
CUresult on_cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiated(real().cuGraphInstantiateWithParams(exec, graph, params), exec, graph);
}
CUresult on_cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiated(real().cuGraphInstantiateWithParams_ptsz(exec, graph, params), exec, graph);
}
CUresult on_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                              CUgraphExecUpdateResult* outcome) {
  return instantiated(real().cuGraphExecUpdate(exec, graph, error_node, outcome), &exec, graph);
}
CUresult on_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* outcome) {
  return instantiated(real().cuGraphExecUpdate_v2(exec, graph, outcome), &exec, graph);
}

CUresult on_cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  const CUresult result = real().cuGraphExecKernelNodeSetParams(exec, node, params);
  return changed(result, [&](Graphs& graphs) { graphs.kernel_changed(exec, node, kernel_node(*params, nullptr)); });
}
CUresult on_cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                              const CUDA_KERNEL_NODE_PARAMS* params) {
  return changed(real().cuGraphExecKernelNodeSetParams_v2(exec, node, params),
                 [&](Graphs& graphs) { graphs.kernel_changed(exec, node, *params); });
}
CUresult on_cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params,
                                           CUcontext context) {
  return changed(real().cuGraphExecMemcpyNodeSetParams(exec, node, params, context),
                 [&](Graphs& graphs) { graphs.copy_changed(exec, node, *params); });
}
CUresult on_cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params,
                                           CUcontext context) {
  return changed(real().cuGraphExecMemsetNodeSetParams(exec, node, params, context),
                 [&](Graphs& graphs) { graphs.memset_changed(exec, node, *params); });
}
CUresult on_cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  return changed(real().cuGraphExecChildGraphNodeSetParams(exec, node, child),
                 [&](Graphs& graphs) { graphs.child_changed(exec, child); });
}
CUresult on_cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  return changed(real().cuGraphExecNodeSetParams(exec, node, params), [&](Graphs& graphs) {
    switch (params->type) {
      case CU_GRAPH_NODE_TYPE_KERNEL:
        return graphs.kernel_changed(exec, node, kernel_node(params->kernel, params->kernel.kern));
      case CU_GRAPH_NODE_TYPE_MEMCPY:
        return graphs.copy_changed(exec, node, params->memcpy.copyParams);
      case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS memset{};
        memset.dst = params->memset.dst;
        return graphs.memset_changed(exec, node, memset);
      }
      case CU_GRAPH_NODE_TYPE_GRAPH:
        return graphs.child_changed(exec, params->graph.graph);
      default:
        return;
    }
  });
}

CUresult on_cuGraphExecDestroy(CUgraphExec exec) {
  contain([&] { Shim::get().graphs.destroyed(exec); });
  return real().cuGraphExecDestroy(exec);
}

CUresult on_cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  const auto running = announce(exec, stream_of_legacy(stream));
  return real().cuGraphLaunch(exec, stream);
}
CUresult on_cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  const auto running = announce(exec, stream_of_ptsz(stream));
  return real().cuGraphLaunch_ptsz(exec, stream);
}

}  // namespace hmshim::interpose
