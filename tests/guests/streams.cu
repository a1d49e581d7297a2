// Two streams, ordered by an event, and the default streams of two threads. Built with --default-stream per-thread, so
// that it reaches the driver's _ptsz and _ptds entry points.
#include <thread>

#include "tests/guests/sum.hpp"

namespace {

constexpr std::size_t kCount = std::size_t{1} << 20;
constexpr cudaStream_t kDefaultStream = nullptr;

void sum(const guests::Array& out, const guests::Array& a, const guests::Array& b, cudaStream_t stream) {
  guest_sum<<<guests::blocks(kCount), guests::kThreads, 0, stream>>>(out.data(), a.data(), b.data(), kCount);
  CHECK(cudaGetLastError());
}

}  // namespace

int main() {
  const guests::Array one(kCount, 1);
  const guests::Array two(kCount, 2);
  const guests::Array left(kCount);
  const guests::Array right(kCount);
  const guests::Array both(kCount);
  const guests::Array mine(kCount);
  const guests::Array theirs(kCount);
  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  cudaEvent_t left_done = nullptr;
  CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&left_done, cudaEventDisableTiming));

  sum(left, one, two, first);
  CHECK(cudaEventRecord(left_done, first));
  sum(right, two, two, second);
  CHECK(cudaStreamWaitEvent(second, left_done, 0));
  sum(both, left, right, second);
  CHECK(cudaStreamSynchronize(second));

  std::thread thread([&] {
    sum(theirs, both, one, kDefaultStream);
    CHECK(cudaStreamSynchronize(kDefaultStream));
  });
  sum(mine, both, two, kDefaultStream);
  CHECK(cudaStreamSynchronize(kDefaultStream));
  thread.join();

  both.print("both");      // 3 + 4
  mine.print("mine");      // 7 + 2
  theirs.print("theirs");  // 7 + 1
  CHECK(cudaEventDestroy(left_done));
  CHECK(cudaStreamDestroy(second));
  CHECK(cudaStreamDestroy(first));
}
