// A loop of two launches over 24 MiB: where that fits, nothing has to migrate after the first iteration.
#include "tests/guests/sum.hpp"

int main() {
  constexpr std::size_t kCount = std::size_t{2} << 20;
  constexpr int kIterations = 20;
  const guests::Array a(kCount, 1);
  const guests::Array b(kCount, 1);
  const guests::Array out(kCount);
  guests::SumArguments back{};
  back.out = a.data();
  back.a = out.data();
  back.b = b.data();
  back.count = kCount;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    guest_sum<<<guests::blocks(kCount), guests::kThreads>>>(out.data(), a.data(), b.data(), kCount);
    CHECK(cudaGetLastError());
    guest_sum_struct<<<guests::blocks(kCount), guests::kThreads>>>(back);
    CHECK(cudaGetLastError());
  }
  CHECK(cudaDeviceSynchronize());
  a.print("a");  // 1 + 2 * 20
}
