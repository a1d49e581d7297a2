// Frees what a graph names, launches the graph and looks what it has hit; then lets the graph go, or makes it name
// other memory each time.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>

namespace {

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: %d\n", what, static_cast<int>(result));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

CUdeviceptr allocate(std::size_t bytes) {
  CUdeviceptr address = 0;
  CHECK(cuMemAllocAsync(&address, bytes, nullptr));
  return address;
}

CUDA_MEMSET_NODE_PARAMS fill_of(CUdeviceptr address, std::size_t bytes) {
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = address;
  fill.value = 0xEE;
  fill.elementSize = 1;
  fill.width = bytes;
  fill.height = 1;
  return fill;
}

CUgraphExec fill_graph(CUcontext context, CUdeviceptr address, std::size_t bytes, CUgraphNode* filling = nullptr) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  const CUDA_MEMSET_NODE_PARAMS fill = fill_of(address, bytes);
  CHECK(cuGraphCreate(&graph, 0));
  CHECK(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, context));
  CHECK(cuGraphInstantiate(&exec, graph, 0));
  if (filling != nullptr) {
    *filling = node;  // as long as the graph is there
  } else {
    CHECK(cuGraphDestroy(graph));
  }
  return exec;
}

void free_under_a_graph(CUcontext context, std::size_t bytes) {
  const CUdeviceptr named = allocate(bytes);
  const CUgraphExec exec = fill_graph(context, named, bytes);
  CHECK(cuMemFreeAsync(named, nullptr));
  const CUdeviceptr other = allocate(bytes);
  CHECK(cuMemsetD8Async(other, 7, bytes, nullptr));
  CHECK(cuGraphLaunch(exec, nullptr));
  unsigned char last = 0;
  CHECK(cuMemcpyDtoH(&last, other + bytes - 1, 1));
  CHECK(cuGraphExecDestroy(exec));
  const CUdeviceptr next = allocate(bytes);
  std::printf("%zu bytes: the other has %d, the next %s\n", bytes, last, next == named ? "its memory" : "other memory");
  CHECK(cuMemFreeAsync(other, nullptr));
  CHECK(cuMemFreeAsync(next, nullptr));
}

void change_what_a_graph_names(CUcontext context, std::size_t bytes) {
  CUdeviceptr named = allocate(bytes);
  CUgraphNode node = nullptr;
  const CUgraphExec exec = fill_graph(context, named, bytes, &node);
  CUmemoryPool pool = nullptr;
  CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
  cuuint64_t most = 0, reserved = 0;
  for (int time = 0; time < 50; ++time) {
    const CUdeviceptr before = named;
    named = allocate(bytes);
    const CUDA_MEMSET_NODE_PARAMS fill = fill_of(named, bytes);
    CHECK(cuGraphExecMemsetNodeSetParams(exec, node, &fill, context));
    CHECK(cuMemFreeAsync(before, nullptr));
    CHECK(cuGraphLaunch(exec, nullptr));
    CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    most = reserved > most ? reserved : most;
  }
  std::printf("changed: %s\n", most <= 8 * bytes ? "memory is used again" : "memory is lost");
  CHECK(cuGraphExecDestroy(exec));
}

}  // namespace

int main() {
  CUcontext context = nullptr;
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
  free_under_a_graph(context, std::size_t{4} << 20);
  free_under_a_graph(context, 1000);
  change_what_a_graph_names(context, std::size_t{4} << 20);
}
