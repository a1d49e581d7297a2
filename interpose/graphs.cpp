#include "interpose/graphs.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "interpose/operands.hpp"

namespace hmshim::interpose {

namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) noexcept {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
  return hash ^ hash >> 29;
}

void add_words(const void* data, std::size_t words, std::vector<std::uint64_t>& out) {
  for (std::size_t at = 0; at < words; ++at) {
    std::uint64_t word;
    std::memcpy(&word, static_cast<const unsigned char*>(data) + at * sizeof word, sizeof word);
    if (word != 0) out.push_back(word);
  }
}

}  // namespace

void Graphs::add_base(CUdeviceptr address, Node& node) const {
  if (address != 0) node.named.push_back(address);
  if (allocations_.find(address).extent == policy::kNoExtent) return;
  if (const auto allocation = allocations_.lookup(address)) node.bases.push_back(allocation->base);
}

Graphs::Node Graphs::node_of(const CUDA_KERNEL_NODE_PARAMS& params) const {
  const bool is_function = params.func != nullptr;
  const void* handle = is_function ? static_cast<const void*>(params.func) : params.kern;
  Node node;
  // A handle that the driver gave for a node may be one that the guest never saw.
  const ParamLayout* layout = layouts_.find(handle, driver_);
  std::optional<ParamLayout> asked;
  if (layout == nullptr) {
    asked = ask_layout(handle, is_function ? HandleKind::Function : HandleKind::Kernel, driver_);
    if (!asked) return Node::unknown();
    layout = &*asked;
  }
  // A kernel by itself, whatever its handle: a graph made anew names the same function.
  node.signature = mix(mix(layout->kernel, params.gridDimX | std::uint64_t{params.gridDimY} << 32),
                       params.gridDimZ | std::uint64_t{params.blockDimX} << 32);
  Touched touched;
  collect_launch(*layout, params.kernelParams, params.extra, allocations_, touched);
  if (tensor_maps_.are_known()) tensor_maps_.collect(*layout, params.kernelParams, params.extra, allocations_, touched);
  for (const policy::ExtentId extent : touched.extents()) {
    if (const auto allocation = allocations_.lookup_extent(extent)) node.bases.push_back(allocation->base);
  }
  node.named = node.bases;
  for_each_param(*layout, params.kernelParams, params.extra,
                 [&](const void* data, std::uint32_t words) { add_words(data, words, node.named); });
  return node;
}

Graphs::Node Graphs::node_of(const CUDA_MEMCPY3D& params) const {
  Node node;
  for (const CUdeviceptr address : sides_of(params)) add_base(address, node);
  return node;
}

Graphs::Node Graphs::node_of(const CUDA_MEMSET_NODE_PARAMS& params) const {
  Node node;
  add_base(params.dst, node);
  return node;
}

Graphs::Node Graphs::read(CUgraphNode handle, CUgraphNodeType type) const {
  const auto ask = [&](auto call, auto params) -> Node {
    if (call == nullptr || call(handle, &params) != CUDA_SUCCESS) return Node::unknown();
    return node_of(params);
  };
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return ask(driver_.cuGraphKernelNodeGetParams_v2, CUDA_KERNEL_NODE_PARAMS{});
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return ask(driver_.cuGraphMemcpyNodeGetParams, CUDA_MEMCPY3D{});
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return ask(driver_.cuGraphMemsetNodeGetParams, CUDA_MEMSET_NODE_PARAMS{});
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:  // the driver does not hand out its bodies
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return Node::unknown();
    default:
      return {};  // names no memory
  }
}

void Graphs::read(CUgraph graph, Nodes& nodes) const {
  std::size_t count = 0;
  if (driver_.cuGraphGetNodes == nullptr || driver_.cuGraphNodeGetType == nullptr ||
      driver_.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) {
    nodes[nullptr].is_known = false;
    return;
  }
  std::vector<CUgraphNode> handles(count);
  if (count > 0 && driver_.cuGraphGetNodes(graph, handles.data(), &count) != CUDA_SUCCESS) {
    nodes[nullptr].is_known = false;
    return;
  }
  handles.resize(std::min(handles.size(), count));
  for (const CUgraphNode handle : handles) {
    CUgraphNodeType type{};
    CUgraph child = nullptr;
    const bool has_type = driver_.cuGraphNodeGetType(handle, &type) == CUDA_SUCCESS;
    if (has_type && type != CU_GRAPH_NODE_TYPE_GRAPH) {
      nodes[handle] = read(handle, type);
    } else if (has_type && driver_.cuGraphChildGraphNodeGetGraph != nullptr &&
               driver_.cuGraphChildGraphNodeGetGraph(handle, &child) == CUDA_SUCCESS) {
      read(child, nodes);
    } else {
      nodes[handle].is_known = false;
    }
  }
}

void Graphs::instantiated(CUgraphExec exec, CUgraph graph) {
  Exec fresh;
  read(graph, fresh.nodes);
  for (auto& [handle, node] : fresh.nodes) pin(node);
  destroyed(exec);
  const std::lock_guard lock(mutex_);
  execs_.insert_or_assign(exec, std::move(fresh));
}

void Graphs::pin(Node& node) const {
  std::size_t pinned = 0;
  for (const std::uint64_t word : node.named) {
    if (const std::uint64_t base = memory_.pin(word); base != 0) node.named[pinned++] = base;
  }
  node.named.resize(pinned);
}

void Graphs::unpin(const Node& node) const {
  for (const std::uint64_t base : node.named) memory_.unpin(base);
}

// A program may change a node with every launch, and free what it named before.
void Graphs::replace(CUgraphExec exec, CUgraphNode node, Node&& fresh) {
  pin(fresh);
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = execs_.find(exec); known != execs_.end()) {
      std::swap(known->second.nodes[node], fresh);
      known->second.operands.reset();
    }
  }
  unpin(fresh);  // by now what was there before, or itself where the graph was never seen
}

void Graphs::kernel_changed(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS& params) {
  replace(exec, node, node_of(params));
}
void Graphs::copy_changed(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D& params) {
  replace(exec, node, node_of(params));
}
void Graphs::memset_changed(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS& params) {
  replace(exec, node, node_of(params));
}

// The nodes of the child that was there before stay: which they were is not known any more. They cost a touch too many.
void Graphs::child_changed(CUgraphExec exec, CUgraph child) {
  Nodes nodes;
  read(child, nodes);
  for (auto& [handle, node] : nodes) replace(exec, handle, std::move(node));
}

void Graphs::destroyed(CUgraphExec exec) {
  decltype(execs_)::node_type gone;
  {
    const std::lock_guard lock(mutex_);
    gone = execs_.extract(exec);
  }
  if (gone.empty()) return;
  for (const auto& [handle, node] : gone.mapped().nodes) unpin(node);
}

std::shared_ptr<const GraphOperands> Graphs::find(CUgraphExec exec) {
  const std::lock_guard lock(mutex_);
  const auto known = execs_.find(exec);
  if (known == execs_.end()) return nullptr;
  Exec& found = known->second;
  if (found.operands == nullptr) {
    auto operands = std::make_shared<GraphOperands>();
    for (const auto& [handle, node] : found.nodes) {
      operands->bases.insert(operands->bases.end(), node.bases.begin(), node.bases.end());
      operands->signature += node.signature;  // the order of nodes is not the driver's promise
      operands->is_complete = operands->is_complete && node.is_known;
    }
    std::ranges::sort(operands->bases);
    operands->bases.erase(std::unique(operands->bases.begin(), operands->bases.end()), operands->bases.end());
    found.operands = std::move(operands);
  }
  return found.operands;
}

}  // namespace hmshim::interpose
