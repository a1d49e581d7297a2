// Graphs: what capture gives is instantiated, launched and updated here; nodes of one's own may be added.
#include "tests/simgpu/runtime/registration.hpp"
#include "tests/simgpu/runtime/runtime.hpp"

namespace hmshim::simgpu::runtime {
// copy.cpp
cudaError_t to_driver(const cudaMemcpy3DParms& given, CUDA_MEMCPY3D* shape);
}  // namespace hmshim::simgpu::runtime

namespace {

using namespace hmshim::simgpu::runtime;

cudaError_t to_driver(const cudaKernelNodeParams* given, CUDA_KERNEL_NODE_PARAMS* parameters) {
  if (given == nullptr) return cudaErrorInvalidValue;
  *parameters = {};
  if (const cudaError_t error = find_kernel(given->func, &parameters->kern); error != cudaSuccess) return error;
  parameters->gridDimX = given->gridDim.x;
  parameters->gridDimY = given->gridDim.y;
  parameters->gridDimZ = given->gridDim.z;
  parameters->blockDimX = given->blockDim.x;
  parameters->blockDimY = given->blockDim.y;
  parameters->blockDimZ = given->blockDim.z;
  parameters->sharedMemBytes = given->sharedMemBytes;
  parameters->kernelParams = given->kernelParams;
  parameters->extra = given->extra;
  return cudaSuccess;
}

CUDA_MEMSET_NODE_PARAMS to_driver(const cudaMemsetParams& given) {
  return {address(given.dst), given.pitch, given.value, given.elementSize, given.width, given.height};
}

CUcontext current_context(const Driver& cu) {
  CUcontext context = nullptr;
  return cu.cuCtxGetCurrent_(&context) == CUDA_SUCCESS ? context : nullptr;
}

}  // namespace

SIMGPU_RUNTIME_BOTH(cudaGraphLaunch, _ptsz, (cudaGraphExec_t exec, cudaStream_t stream),
                    { return cu.cuGraphLaunch_(exec, stream); })
SIMGPU_RUNTIME_BOTH(cudaGraphUpload, _ptsz, (cudaGraphExec_t exec, cudaStream_t stream),
                    { return cu.cuGraphUpload_(exec, stream); })

extern "C" {

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  return run([=](const Driver& cu) { return cu.cuGraphCreate_(graph, flags); });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return run([=](const Driver& cu) { return cu.cuGraphDestroy_(graph); });
}
cudaError_t cudaGraphClone(cudaGraph_t* copy, cudaGraph_t original) {
  return run([=](const Driver& cu) { return cu.cuGraphClone_(copy, original); });
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                   size_t count, const cudaKernelNodeParams* given) {
  return run([=](const Driver& cu) {
    CUDA_KERNEL_NODE_PARAMS parameters;
    if (const cudaError_t error = to_driver(given, &parameters); error != cudaSuccess) return error;
    return from(cu.cuGraphAddKernelNode_(node, graph, dependencies, count, &parameters));
  });
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                   size_t count, const cudaMemcpy3DParms* given) {
  return run([=](const Driver& cu) {
    CUDA_MEMCPY3D shape;
    if (given == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t error = to_driver(*given, &shape); error != cudaSuccess) return error;
    return from(cu.cuGraphAddMemcpyNode_(node, graph, dependencies, count, &shape, current_context(cu)));
  });
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                     size_t count, void* to, const void* source, size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpy3DParms shape{};
  shape.srcPtr = {const_cast<void*>(source), bytes, bytes, 1};
  shape.dstPtr = {to, bytes, bytes, 1};
  shape.extent = {bytes, 1, 1};
  shape.kind = kind;
  return cudaGraphAddMemcpyNode(node, graph, dependencies, count, &shape);
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                   size_t count, const cudaMemsetParams* given) {
  return run([=](const Driver& cu) {
    if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMSET_NODE_PARAMS parameters = to_driver(*given);
    return cu.cuGraphAddMemsetNode_(node, graph, dependencies, count, &parameters, current_context(cu));
  });
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                 size_t count, const cudaHostNodeParams* given) {
  return run([=](const Driver& cu) {
    if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_HOST_NODE_PARAMS parameters{given->fn, given->userData};
    return cu.cuGraphAddHostNode_(node, graph, dependencies, count, &parameters);
  });
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                  size_t count) {
  return run([=](const Driver& cu) { return cu.cuGraphAddEmptyNode_(node, graph, dependencies, count); });
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                       size_t count, cudaGraph_t child) {
  return run([=](const Driver& cu) { return cu.cuGraphAddChildGraphNode_(node, graph, dependencies, count, child); });
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* source, const cudaGraphNode_t* to,
                                     const cudaGraphEdgeData* edges, size_t count) {
  return run([=](const Driver& cu) {
    return cu.cuGraphAddDependencies_(graph, source, to, reinterpret_cast<const CUgraphEdgeData*>(edges), count);
  });
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return run([=](const Driver& cu) { return cu.cuGraphGetNodes_(graph, nodes, count); });
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return run([=](const Driver& cu) { return cu.cuGraphGetRootNodes_(graph, nodes, count); });
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return run([=](const Driver& cu) { return cu.cuGraphNodeGetType_(node, reinterpret_cast<CUgraphNodeType*>(type)); });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return run([=](const Driver& cu) { return cu.cuGraphInstantiateWithFlags_(exec, graph, flags); });
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return run([=](const Driver& cu) { return cu.cuGraphExecDestroy_(exec); });
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  static_assert(sizeof(cudaGraphExecUpdateResultInfo) == sizeof(CUgraphExecUpdateResultInfo));
  return run([=](const Driver& cu) {
    return cu.cuGraphExecUpdate_(exec, graph, reinterpret_cast<CUgraphExecUpdateResultInfo*>(info));
  });
}
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* given) {
  return run([=](const Driver& cu) {
    CUDA_KERNEL_NODE_PARAMS parameters;
    if (const cudaError_t error = to_driver(given, &parameters); error != cudaSuccess) return error;
    return from(cu.cuGraphExecKernelNodeSetParams_(exec, node, &parameters));
  });
}
cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaMemsetParams* given) {
  return run([=](const Driver& cu) {
    if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMSET_NODE_PARAMS parameters = to_driver(*given);
    return cu.cuGraphExecMemsetNodeSetParams_(exec, node, &parameters, current_context(cu));
  });
}

}  // extern "C"
