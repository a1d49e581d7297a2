#pragma once
// What tensor_churn's kernels do with a tensor: one word of each 64 KiB carries its value, the last word too. Memory
// goes and comes, and is poisoned, in no smaller parts; more words would only cost time.
#include <cstddef>

#ifdef __CUDACC__
#define GUESTS_BOTH __host__ __device__
#else
#define GUESTS_BOTH
#endif

namespace churn {

using Word = unsigned long long;
constexpr std::size_t kStride = 65536 / sizeof(Word);

GUESTS_BOTH inline void fill(Word* data, std::size_t words, Word value) {
  for (std::size_t i = 0; i < words; i += kStride) data[i] = value + i;
  data[words - 1] = value + words - 1;
}

GUESTS_BOTH inline void check(const Word* data, std::size_t words, Word value, Word* wrong) {
  Word found = data[words - 1] != value + words - 1;
  for (std::size_t i = 0; i < words; i += kStride) found += data[i] != value + i;
  *wrong += found;
}

}  // namespace churn
