// What goes on beside a stream that is captured: work and allocations on other streams.
// usage: beside_capture reuse     memory used by a stream beside the capture is freed and taken again after it
//        beside_capture allocate  a stream-ordered allocation while another stream is captured
#include <cstring>

#include "tests/guests/sum.hpp"

namespace {

cudaStream_t new_stream() {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void reuse() {
  constexpr std::size_t kElements = std::size_t{2} << 20;
  const cudaStream_t captured = new_stream(), beside = new_stream(), next = new_stream();
  guests::Array sum(kElements, 0), five(kElements, 5), scratch(kElements, 0);
  const std::vector<float> ones(kElements, 1);
  float* operand = nullptr;
  CHECK(cudaMalloc(&operand, kElements * sizeof(float)));
  CHECK(cudaMemcpyAsync(operand, ones.data(), kElements * sizeof(float), cudaMemcpyHostToDevice, next));
  CHECK(cudaDeviceSynchronize());

  CHECK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed));
  const auto launch = [&](float* out, const float* a) {
    guest_sum<<<guests::blocks(kElements), 256, 0, beside>>>(out, a, five.data(), kElements);
    CHECK(cudaGetLastError());
  };
  for (int i = 0; i < 40; ++i) launch(scratch.data(), five.data());
  launch(sum.data(), operand);
  cudaGraph_t graph;
  CHECK(cudaStreamEndCapture(captured, &graph));

  CHECK(cudaFree(operand));
  float* again = nullptr;
  CHECK(cudaMalloc(&again, kElements * sizeof(float)));
  CHECK(cudaMemsetAsync(again, 0xff, kElements * sizeof(float), next));
  CHECK(cudaDeviceSynchronize());
  sum.print("sum");
}

void allocate() {
  const cudaStream_t captured = new_stream(), beside = new_stream();
  void* memory = nullptr;
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
  CHECK(cudaMallocAsync(&memory, std::size_t{12} << 20, beside));
  CHECK(cudaStreamEndCapture(captured, &graph));
  CHECK(cudaFreeAsync(memory, beside));
  CHECK(cudaDeviceSynchronize());
  std::printf("the capture survived\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "reuse") == 0) {
    reuse();
  } else if (argc == 2 && std::strcmp(argv[1], "allocate") == 0) {
    allocate();
  } else {
    std::fprintf(stderr, "usage: beside_capture reuse|allocate\n");
    return 2;
  }
}
