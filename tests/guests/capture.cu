// Captures two launches into a graph and launches the graph three times.
#include "tests/guests/sum.hpp"

int main() {
  constexpr std::size_t kCount = std::size_t{1} << 20;
  const guests::Array total(kCount, 0);
  const guests::Array one(kCount, 1);
  const guests::Array next(kCount);
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  guest_sum<<<guests::blocks(kCount), guests::kThreads, 0, stream>>>(next.data(), total.data(), one.data(), kCount);
  CHECK(cudaGetLastError());
  guest_sum<<<guests::blocks(kCount), guests::kThreads, 0, stream>>>(total.data(), next.data(), one.data(), kCount);
  CHECK(cudaGetLastError());
  CHECK(cudaStreamEndCapture(stream, &graph));
  std::size_t nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  std::printf("nodes %zu\n", nodes);
  total.print("captured");  // 0: capture runs nothing

  cudaGraphExec_t executable = nullptr;
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int launch = 0; launch < 3; ++launch) CHECK(cudaGraphLaunch(executable, stream));
  CHECK(cudaStreamSynchronize(stream));
  total.print("replayed");  // 2 * 3
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
}
