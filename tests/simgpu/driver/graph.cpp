#include "tests/simgpu/driver/graph.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "tests/simgpu/driver/capture.hpp"
#include "tests/simgpu/driver/flavours.hpp"
#include "tests/simgpu/driver/module.hpp"

namespace hmshim::simgpu {

struct Node {
  CUgraph graph = nullptr;
  Work work;
  std::vector<CUgraphNode> dependencies;
  CUgraphNode origin = nullptr;           // in a clone: the node it was cloned from
  std::vector<void*> parameter_pointers;  // what cuGraphKernelNodeGetParams hands out
};

struct Graph {
  std::vector<CUgraphNode> nodes;  // in the order they were added
};

namespace {

// One node of an executable graph, in an order that respects the edges.
struct Step {
  CUgraphNode node = nullptr;
  Work work;
  bool is_enabled = true;
};

struct GraphExec {
  std::vector<Step> steps;
  unsigned long long flags = 0;
};

HandleTable<Graph, CUgraph, HandleKind::Graph> g_graphs;
HandleTable<Node, CUgraphNode, HandleKind::Node> g_nodes;
HandleTable<GraphExec, CUgraphExec, HandleKind::GraphExec> g_execs;

// Nodes so that each comes after its dependencies; fewer than there are when the edges have a cycle.
std::vector<CUgraphNode> in_order(const Graph& graph) {
  std::vector<CUgraphNode> order;
  std::set<CUgraphNode> done;
  for (bool has_progress = true; has_progress;) {
    has_progress = false;
    for (const CUgraphNode node : graph.nodes) {
      if (done.contains(node)) continue;
      const auto& dependencies = g_nodes.find(node)->dependencies;
      if (!std::ranges::all_of(dependencies, [&](CUgraphNode d) { return done.contains(d); })) continue;
      order.push_back(node);
      done.insert(node);
      has_progress = true;
    }
  }
  return order;
}

CUgraph clone(const Graph& graph) {
  const CUgraph copy = make_graph();
  std::map<CUgraphNode, CUgraphNode> twins;
  for (const CUgraphNode node : in_order(graph)) {
    const Node& original = *g_nodes.find(node);
    std::vector<CUgraphNode> dependencies;
    for (const CUgraphNode dependency : original.dependencies) dependencies.push_back(twins.at(dependency));
    const CUgraphNode twin = add_node(copy, original.work, std::move(dependencies));
    g_nodes.find(twin)->origin = node;
    twins.emplace(node, twin);
  }
  return copy;
}

// What a graph does as a node of another: a copy, so that later changes of the child do not matter.
Work child_work(const Graph& child) {
  auto work = std::make_shared<ChildGraphWork>();
  work->graph = clone(child);
  for (const CUgraphNode node : in_order(child)) work->works.push_back(g_nodes.find(node)->work);
  return std::shared_ptr<const ChildGraphWork>(std::move(work));
}

void destroy_node(CUgraphNode handle) {
  const Node& node = *g_nodes.find(handle);
  if (const auto* child = std::get_if<std::shared_ptr<const ChildGraphWork>>(&node.work))
    destroy_graph((*child)->graph);
  g_nodes.destroy(handle);
}

// A call on graphs, under the lock that guards them.
template <class Body>
CUresult on_graphs(Call call, Body&& body) {
  return initialised(call, [&]() -> CUresult {
    const std::lock_guard lock(driver().mutex);
    return body();
  });
}

// A call about a node of one kind of work.
template <class Kind, class Body>
CUresult on_node(Call call, CUgraphNode handle, Body&& body) {
  return on_graphs(call, [&]() -> CUresult {
    Node* node = g_nodes.find(handle);
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto* work = std::get_if<Kind>(&node->work);
    return work == nullptr ? CUDA_ERROR_INVALID_VALUE : body(*node, *work);
  });
}

// Replaces the work of one node in an executable graph; the kind of work must stay.
CUresult set_step(Call call, CUgraphExec exec_handle, CUgraphNode node, const std::optional<Work>& work) {
  return on_graphs(call, [&]() -> CUresult {
    GraphExec* exec = g_execs.find(exec_handle);
    if (exec == nullptr || !work) return CUDA_ERROR_INVALID_VALUE;
    const auto step = std::ranges::find(exec->steps, node, &Step::node);
    if (step == exec->steps.end() || step->work.index() != work->index()) return CUDA_ERROR_INVALID_VALUE;
    step->work = *work;
    return CUDA_SUCCESS;
  });
}

CUresult add(Call call, CUgraphNode* out, CUgraph graph_handle, const CUgraphNode* dependencies, std::size_t count,
             const std::optional<Work>& work) {
  return on_graphs(call, [&]() -> CUresult {
    if (out == nullptr || g_graphs.find(graph_handle) == nullptr || !work) return CUDA_ERROR_INVALID_VALUE;
    if (count != 0 && dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      const Node* dependency = g_nodes.find(dependencies[i]);
      if (dependency == nullptr || dependency->graph != graph_handle) return CUDA_ERROR_INVALID_VALUE;
    }
    *out = add_node(graph_handle, *work, {dependencies, dependencies + count});
    return CUDA_SUCCESS;
  });
}

// ---- parameters to work and back; nothing where they are not valid

std::optional<Work> kernel_work(const CUDA_KERNEL_NODE_PARAMS* given) {
  if (given == nullptr || !is_ready()) return std::nullopt;
  KernelWork work;
  const unsigned grid[] = {given->gridDimX, given->gridDimY, given->gridDimZ};
  const unsigned block[] = {given->blockDimX, given->blockDimY, given->blockDimZ};
  std::copy_n(grid, 3, work.grid);
  std::copy_n(block, 3, work.block);
  work.shared_bytes = given->sharedMemBytes;
  CUfunction function = given->func;
  if (function == nullptr) function = reinterpret_cast<CUfunction>(given->kern);
  CUcontext context = given->ctx;
  Context* current = nullptr;
  if (context == nullptr && current_context(&current, &context) != CUDA_SUCCESS) return std::nullopt;
  if (prepare_kernel(function, context, given->kernelParams, given->extra, work) != CUDA_SUCCESS) return std::nullopt;
  return work;
}

void to_parameters(Node& node, KernelWork& work, CUDA_KERNEL_NODE_PARAMS* out) {
  node.parameter_pointers.clear();
  for (const Parameter& parameter : work.code->image.parameters) {
    node.parameter_pointers.push_back(work.arguments.data() + parameter.offset_bytes);
  }
  *out = {.func = work.function,
          .gridDimX = work.grid[0],
          .gridDimY = work.grid[1],
          .gridDimZ = work.grid[2],
          .blockDimX = work.block[0],
          .blockDimY = work.block[1],
          .blockDimZ = work.block[2],
          .sharedMemBytes = work.shared_bytes,
          .kernelParams = node.parameter_pointers.data(),
          .extra = nullptr,
          .kern = work.kernel,
          .ctx = work.context};
}

std::optional<Work> copy_work(const CUDA_MEMCPY3D* given) {
  CopyWork work;
  if (given == nullptr || to_work(*given, work) != CUDA_SUCCESS) return std::nullopt;
  return work;
}

std::optional<Work> fill_work(const CUDA_MEMSET_NODE_PARAMS* given) {
  if (given == nullptr) return std::nullopt;
  if (given->elementSize != 1 && given->elementSize != 2 && given->elementSize != 4) return std::nullopt;
  return FillWork{given->dst, given->pitch, given->value, given->elementSize, given->width, given->height};
}

std::optional<Work> host_work(const CUDA_HOST_NODE_PARAMS* given) {
  if (given == nullptr || given->fn == nullptr) return std::nullopt;
  return HostWork{given->fn, given->userData};
}

CUgraphNodeType type_of(const Work& work) {
  struct Type {
    CUgraphNodeType operator()(const KernelWork&) const { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUgraphNodeType operator()(const CopyWork&) const { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUgraphNodeType operator()(const FillWork&) const { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUgraphNodeType operator()(const HostWork&) const { return CU_GRAPH_NODE_TYPE_HOST; }
    CUgraphNodeType operator()(const RecordWork&) const { return CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
    CUgraphNodeType operator()(const WaitWork&) const { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
    CUgraphNodeType operator()(const ValueWork&) const { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUgraphNodeType operator()(const EmptyWork&) const { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const std::shared_ptr<const ChildGraphWork>&) const { return CU_GRAPH_NODE_TYPE_GRAPH; }
  };
  return std::visit(Type{}, work);
}

// The list protocol of the API: a null array asks for the count; else up to *count entries, the rest set to null.
CUresult list(const std::vector<CUgraphNode>& nodes, CUgraphNode* out, std::size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out != nullptr) {
    for (std::size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? nodes[i] : nullptr;
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
  return CUDA_SUCCESS;
}

CUresult nodes_of(Call call, CUgraph handle, CUgraphNode* out, std::size_t* count, bool is_root_only) {
  return on_graphs(call, [=]() -> CUresult {
    const Graph* graph = g_graphs.find(handle);
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::vector<CUgraphNode> nodes = graph->nodes;
    if (is_root_only) std::erase_if(nodes, [](CUgraphNode node) { return !g_nodes.find(node)->dependencies.empty(); });
    return list(nodes, out, count);
  });
}

CUresult edges_of(Call call, CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                  std::size_t* count) {
  return on_graphs(call, [=]() -> CUresult {
    const Graph* graph = g_graphs.find(handle);
    if (graph == nullptr || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<CUgraphNode> sources;
    std::vector<CUgraphNode> targets;
    for (const CUgraphNode node : graph->nodes) {
      for (const CUgraphNode dependency : g_nodes.find(node)->dependencies) {
        sources.push_back(dependency);
        targets.push_back(node);
      }
    }
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (data != nullptr) std::fill_n(data, std::min(*count, sources.size()), CUgraphEdgeData{});
    std::size_t target_count = *count;
    if (const CUresult result = list(targets, to, &target_count); result != CUDA_SUCCESS) return result;
    return list(sources, from, count);
  });
}

CUresult neighbours_of(Call call, CUgraphNode handle, CUgraphNode* out, std::size_t* count, bool is_forward) {
  return on_graphs(call, [=]() -> CUresult {
    const Node* node = g_nodes.find(handle);
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_forward) return list(node->dependencies, out, count);
    std::vector<CUgraphNode> dependents;
    for (const CUgraphNode other : g_graphs.find(node->graph)->nodes) {
      if (std::ranges::count(g_nodes.find(other)->dependencies, handle) != 0) dependents.push_back(other);
    }
    return list(dependents, out, count);
  });
}

CUresult change_edges(Call call, CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, std::size_t count,
                      bool is_addition) {
  return on_graphs(call, [=]() -> CUresult {
    if (g_graphs.find(graph) == nullptr || (count != 0 && (from == nullptr || to == nullptr)))
      return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      const Node* source = g_nodes.find(from[i]);
      Node* target = g_nodes.find(to[i]);
      if (source == nullptr || target == nullptr || source->graph != graph || target->graph != graph) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      const bool is_known = std::ranges::count(target->dependencies, from[i]) != 0;
      if (is_known == is_addition) return CUDA_ERROR_INVALID_VALUE;
      if (is_addition) {
        target->dependencies.push_back(from[i]);
      } else {
        std::erase(target->dependencies, from[i]);
      }
    }
    return CUDA_SUCCESS;
  });
}

// Steps of an executable graph. Nothing when the edges have a cycle.
std::optional<std::vector<Step>> plan(const Graph& graph) {
  const auto order = in_order(graph);
  if (order.size() != graph.nodes.size()) return std::nullopt;
  std::vector<Step> steps;
  for (const CUgraphNode node : order) steps.push_back({node, g_nodes.find(node)->work});
  return steps;
}

CUresult instantiate(Call call, CUgraphExec* out, CUgraph handle, unsigned long long flags) {
  return on_graphs(call, [=]() -> CUresult {
    const Graph* graph = g_graphs.find(handle);
    if (out == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto steps = plan(*graph);
    if (!steps) return CUDA_ERROR_INVALID_VALUE;
    *out = g_execs.create();
    g_execs.find(*out)->steps = std::move(*steps);
    g_execs.find(*out)->flags = flags;
    return CUDA_SUCCESS;
  });
}

CUresult update_exec(Call call, CUgraphExec exec_handle, CUgraph graph_handle, CUgraphExecUpdateResult* update,
                     CUgraphNode* error_node) {
  return on_graphs(call, [=]() -> CUresult {
    GraphExec* exec = g_execs.find(exec_handle);
    const Graph* graph = g_graphs.find(graph_handle);
    if (exec == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (error_node != nullptr) *error_node = nullptr;
    const auto fail = [&](CUgraphExecUpdateResult reason, CUgraphNode node) {
      if (update != nullptr) *update = reason;
      if (error_node != nullptr) *error_node = node;
      return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    };
    auto steps = plan(*graph);
    if (!steps || steps->size() != exec->steps.size())
      return fail(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr);
    for (std::size_t i = 0; i < steps->size(); ++i) {
      if ((*steps)[i].work.index() != exec->steps[i].work.index()) {
        return fail(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, (*steps)[i].node);
      }
    }
    // Nodes keep the names under which they were instantiated: cuGraphExec*NodeSetParams takes those.
    for (std::size_t i = 0; i < steps->size(); ++i) exec->steps[i].work = std::move((*steps)[i].work);
    if (update != nullptr) *update = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    return CUDA_SUCCESS;
  });
}

// Steps run one after the other in the stream: a legal order of what the edges leave open.
CUresult launch(Call call, CUgraphExec handle, CUstream stream_handle) {
  return in_context(call, [=](const Context&) -> CUresult {
    Stream* stream = find_stream(stream_handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    auto works = std::make_shared<ChildGraphWork>();
    {
      const std::lock_guard lock(driver().mutex);
      const GraphExec* exec = g_execs.find(handle);
      if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
      for (const Step& step : exec->steps) {
        if (step.is_enabled) works->works.push_back(step.work);
      }
      if (stream->capture.load() != nullptr) works->graph = make_graph();
    }
    return submit(*stream, std::shared_ptr<const ChildGraphWork>(std::move(works)));
  });
}

CUresult upload(Call call, CUgraphExec handle, CUstream stream) {
  return in_context(call, [=](const Context&) -> CUresult {
    if (find_stream(stream) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const std::lock_guard lock(driver().mutex);
    return g_execs.find(handle) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult instantiate_with_parameters(Call call, CUgraphExec* out, CUgraph graph,
                                     CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  parameters->hErrNode_out = nullptr;
  const CUresult result = instantiate(call, out, graph, parameters->flags);
  parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

}  // namespace

CUgraph make_graph() { return g_graphs.create(); }

bool destroy_graph(CUgraph handle) {
  const Graph* graph = g_graphs.find(handle);
  if (graph == nullptr) return false;
  for (const CUgraphNode node : graph->nodes) destroy_node(node);
  return g_graphs.destroy(handle);
}

CUgraphNode add_node(CUgraph graph, Work work, std::vector<CUgraphNode> dependencies) {
  const CUgraphNode handle = g_nodes.create();
  Node& node = *g_nodes.find(handle);
  node.graph = graph;
  node.work = std::move(work);
  node.dependencies = std::move(dependencies);
  g_graphs.find(graph)->nodes.push_back(handle);
  return handle;
}

const std::vector<CUgraphNode>& dependencies_of(CUgraphNode node) { return g_nodes.find(node)->dependencies; }

bool is_graph(CUgraph graph) { return g_graphs.find(graph) != nullptr; }

std::size_t live_graphs() { return g_graphs.live() + g_execs.live(); }

}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
  return on_graphs(Call::cuGraphCreate, [=] {
    if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *out = make_graph();
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphDestroy(CUgraph graph) {
  return on_graphs(Call::cuGraphDestroy,
                   [=] { return destroy_graph(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
}
CUresult cuGraphClone(CUgraph* out, CUgraph original) {
  return on_graphs(Call::cuGraphClone, [=] {
    const Graph* graph = g_graphs.find(original);
    if (out == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = clone(*graph);
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph copy) {
  return on_graphs(Call::cuGraphNodeFindInClone, [=] {
    const Graph* graph = g_graphs.find(copy);
    if (out == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto twin =
        std::ranges::find_if(graph->nodes, [=](CUgraphNode node) { return g_nodes.find(node)->origin == original; });
    if (twin == graph->nodes.end()) return CUDA_ERROR_INVALID_VALUE;
    *out = *twin;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return add(Call::cuGraphAddKernelNode_v2, out, graph, dependencies, count, kernel_work(parameters));
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMCPY3D* parameters, CUcontext) {
  return add(Call::cuGraphAddMemcpyNode, out, graph, dependencies, count, copy_work(parameters));
}
CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext) {
  return add(Call::cuGraphAddMemsetNode, out, graph, dependencies, count, fill_work(parameters));
}
CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS* parameters) {
  return add(Call::cuGraphAddHostNode, out, graph, dependencies, count, host_work(parameters));
}
CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count) {
  return add(Call::cuGraphAddEmptyNode, out, graph, dependencies, count, EmptyWork{});
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                   CUevent event) {
  return add(Call::cuGraphAddEventRecordNode, out, graph, dependencies, count, RecordWork{event});
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                 CUevent event) {
  return add(Call::cuGraphAddEventWaitNode, out, graph, dependencies, count, WaitWork{event});
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                  CUgraph child_handle) {
  std::optional<Work> work;
  if (is_ready()) {
    const std::lock_guard lock(driver().mutex);
    if (const Graph* child = g_graphs.find(child_handle)) work = child_work(*child);
  }
  return add(Call::cuGraphAddChildGraphNode, out, graph, dependencies, count, work);
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* out) {
  return on_node<std::shared_ptr<const ChildGraphWork>>(Call::cuGraphChildGraphNodeGetGraph, handle,
                                                        [=](const Node&, const auto& child) {
                                                          if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
                                                          *out = child->graph;
                                                          return CUDA_SUCCESS;
                                                        });
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* out) {
  return on_node<KernelWork>(Call::cuGraphKernelNodeGetParams_v2, handle, [=](Node& node, KernelWork& work) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    to_parameters(node, work, out);
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  const auto fresh = kernel_work(parameters);
  return on_node<KernelWork>(Call::cuGraphKernelNodeSetParams_v2, handle, [&](const Node&, KernelWork& work) {
    if (!fresh) return CUDA_ERROR_INVALID_VALUE;
    work = std::get<KernelWork>(*fresh);
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D* parameters) {
  const auto fresh = copy_work(parameters);
  return on_node<CopyWork>(Call::cuGraphMemcpyNodeSetParams, handle, [&](const Node&, CopyWork& work) {
    if (!fresh) return CUDA_ERROR_INVALID_VALUE;
    work = std::get<CopyWork>(*fresh);
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D* out) {
  return on_node<CopyWork>(Call::cuGraphMemcpyNodeGetParams, handle, [=](const Node&, const CopyWork& work) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = {};
    out->dstMemoryType = out->srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    out->dstDevice = work.destination;
    out->srcDevice = work.source;
    out->dstPitch = work.destination_pitch;
    out->srcPitch = work.source_pitch;
    out->dstHeight = work.destination_pitch == 0 ? 0 : work.destination_slice / work.destination_pitch;
    out->srcHeight = work.source_pitch == 0 ? 0 : work.source_slice / work.source_pitch;
    out->WidthInBytes = work.width;
    out->Height = work.height;
    out->Depth = work.depth;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS* out) {
  return on_node<FillWork>(Call::cuGraphMemsetNodeGetParams, handle, [=](const Node&, const FillWork& work) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = {work.destination, work.pitch, work.value, work.element_bytes, work.width, work.height};
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS* parameters) {
  const auto fresh = fill_work(parameters);
  return on_node<FillWork>(Call::cuGraphMemsetNodeSetParams, handle, [&](const Node&, FillWork& work) {
    if (!fresh) return CUDA_ERROR_INVALID_VALUE;
    work = std::get<FillWork>(*fresh);
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS* out) {
  return on_node<HostWork>(Call::cuGraphHostNodeGetParams, handle, [=](const Node&, const HostWork& work) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = {work.function, work.data};
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return on_graphs(Call::cuGraphNodeGetType, [=] {
    const Node* node = g_nodes.find(handle);
    if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *type = type_of(node->work);
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* out, size_t* count) {
  return nodes_of(Call::cuGraphGetNodes, graph, out, count, false);
}
CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* out, size_t* count) {
  return nodes_of(Call::cuGraphGetRootNodes, graph, out, count, true);
}
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return edges_of(Call::cuGraphGetEdges, graph, from, to, nullptr, count);
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  return edges_of(Call::cuGraphGetEdges_v2, graph, from, to, data, count);
}
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* out, size_t* count) {
  return neighbours_of(Call::cuGraphNodeGetDependencies, node, out, count, false);
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* out, CUgraphEdgeData* data, size_t* count) {
  const std::size_t room = data != nullptr && count != nullptr ? *count : 0;
  std::fill_n(data, room, CUgraphEdgeData{});
  return neighbours_of(Call::cuGraphNodeGetDependencies_v2, node, out, count, false);
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* out, size_t* count) {
  return neighbours_of(Call::cuGraphNodeGetDependentNodes, node, out, count, true);
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* out, CUgraphEdgeData* data, size_t* count) {
  const std::size_t room = data != nullptr && count != nullptr ? *count : 0;
  std::fill_n(data, room, CUgraphEdgeData{});
  return neighbours_of(Call::cuGraphNodeGetDependentNodes_v2, node, out, count, true);
}
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return change_edges(Call::cuGraphAddDependencies, graph, from, to, count, true);
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t count) {
  return change_edges(Call::cuGraphAddDependencies_v2, graph, from, to, count, true);
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return change_edges(Call::cuGraphRemoveDependencies, graph, from, to, count, false);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData*, size_t count) {
  return change_edges(Call::cuGraphRemoveDependencies_v2, graph, from, to, count, false);
}
CUresult cuGraphDestroyNode(CUgraphNode handle) {
  return on_graphs(Call::cuGraphDestroyNode, [=] {
    const Node* node = g_nodes.find(handle);
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Graph& graph = *g_graphs.find(node->graph);
    std::erase(graph.nodes, handle);
    for (const CUgraphNode other : graph.nodes) std::erase(g_nodes.find(other)->dependencies, handle);
    destroy_node(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes != 0) *log = '\0';
  return instantiate(Call::cuGraphInstantiate, out, graph, 0);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes != 0) *log = '\0';
  return instantiate(Call::cuGraphInstantiate_v2, out, graph, 0);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  return instantiate(Call::cuGraphInstantiateWithFlags, out, graph, flags);
}
CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  return on_graphs(Call::cuGraphExecGetFlags, [=] {
    const GraphExec* exec = g_execs.find(handle);
    if (exec == nullptr || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return on_graphs(Call::cuGraphExecDestroy,
                   [=] { return g_execs.destroy(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
}
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node, CUgraphExecUpdateResult* result) {
  return update_exec(Call::cuGraphExecUpdate, exec, graph, result, error_node);
}
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  if (info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  info->errorFromNode = nullptr;
  return update_exec(Call::cuGraphExecUpdate_v2, exec, graph, &info->result, &info->errorNode);
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return set_step(Call::cuGraphExecKernelNodeSetParams_v2, exec, node, kernel_work(parameters));
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* parameters,
                                        CUcontext) {
  return set_step(Call::cuGraphExecMemcpyNodeSetParams, exec, node, copy_work(parameters));
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* parameters,
                                        CUcontext) {
  return set_step(Call::cuGraphExecMemsetNodeSetParams, exec, node, fill_work(parameters));
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* parameters) {
  return set_step(Call::cuGraphExecHostNodeSetParams, exec, node, host_work(parameters));
}
CUresult cuGraphNodeSetEnabled(CUgraphExec exec_handle, CUgraphNode node, unsigned is_enabled) {
  return on_graphs(Call::cuGraphNodeSetEnabled, [=] {
    GraphExec* exec = g_execs.find(exec_handle);
    if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto step = std::ranges::find(exec->steps, node, &Step::node);
    if (step == exec->steps.end()) return CUDA_ERROR_INVALID_VALUE;
    step->is_enabled = is_enabled != 0;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphNodeGetEnabled(CUgraphExec exec_handle, CUgraphNode node, unsigned* is_enabled) {
  return on_graphs(Call::cuGraphNodeGetEnabled, [=] {
    const GraphExec* exec = g_execs.find(exec_handle);
    if (exec == nullptr || is_enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto step = std::ranges::find(exec->steps, node, &Step::node);
    if (step == exec->steps.end()) return CUDA_ERROR_INVALID_VALUE;
    *is_enabled = step->is_enabled;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"

SIMGPU_BOTH(cuGraphInstantiateWithParams, (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters),
            instantiate_with_parameters(kCall, out, graph, parameters))
SIMGPU_BOTH(cuGraphLaunch, (CUgraphExec exec, CUstream stream), launch(kCall, exec, on(stream)))
SIMGPU_BOTH(cuGraphUpload, (CUgraphExec exec, CUstream stream), upload(kCall, exec, on(stream)))
