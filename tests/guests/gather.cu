// Rows of a table far larger than the device, gathered at random, between launches on what fits: an embedding table, or
// the features of a graph. Arguments: MiB of the table, and of each of the two arrays that are added in between.
#include <cstdint>
#include <cstdlib>

#include "tests/guests/gather.hpp"
#include "tests/guests/sum.hpp"

extern "C" __global__ void guest_gather(float* out, const float* table, std::size_t rows, unsigned seed) {
  const std::size_t row = guests::row_of(seed, blockIdx.x, rows);
  out[blockIdx.x * guests::kRowFloats + threadIdx.x] = table[row * guests::kRowFloats + threadIdx.x];
}

extern "C" __global__ void guest_number_rows(float* table, std::size_t rows) {
  for (std::size_t row = blockIdx.x; row < rows; row += gridDim.x)
    table[row * guests::kRowFloats + threadIdx.x] = static_cast<float>(row);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::size_t table_bytes = std::strtoull(argv[1], nullptr, 10) << 20;
  const std::size_t count = (std::strtoull(argv[2], nullptr, 10) << 20) / sizeof(float);
  const std::size_t rows = table_bytes / (guests::kRowFloats * sizeof(float));
  constexpr unsigned kIterations = 8;

  const guests::Array table(rows * guests::kRowFloats);
  const guests::Array gathered(guests::kGathered * guests::kRowFloats, 0);
  const guests::Array one(count, 1);
  guests::Array sum(count, 0);
  guest_number_rows<<<256, guests::kRowFloats>>>(table.data(), rows);
  std::vector<float> values(guests::kGathered * guests::kRowFloats);
  double total = 0;
  for (unsigned iteration = 0; iteration < kIterations; ++iteration) {
    guest_gather<<<guests::kGathered, guests::kRowFloats>>>(gathered.data(), table.data(), rows, iteration);
    for (int i = 0; i < 4; ++i)
      guest_sum<<<guests::blocks(count), guests::kThreads>>>(sum.data(), sum.data(), one.data(), count);
    CHECK(cudaMemcpy(values.data(), gathered.data(), values.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (const float value : values) total += value;
  }
  std::printf("gathered %.0f\n", total);
  sum.print("sum");
}
