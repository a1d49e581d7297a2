// Takes memory of every kind, uses it and gives it back; goes on after an error and frees once more what did not go at
// first. In the end as much must be free as in the beginning, whatever call failed on the way.
#include <cuda.h>

#include <cstdio>
#include <vector>

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

template <class Call>
CUresult twice(Call call) {
  const CUresult result = call();
  return result == CUDA_SUCCESS ? result : call();
}

std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  twice([&] { return cuCtxSynchronize(); });
  twice([&] { return cuMemGetInfo(&free, &total); });
  return free;
}

struct Piece {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  bool is_async = false;
};

void take(std::vector<Piece>& pieces, CUstream stream) {
  const auto keep = [&](CUresult result, Piece piece) {
    if (result == CUDA_SUCCESS) pieces.push_back(piece);
  };
  for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB, 8 * kMiB}) {
    Piece plain{0, bytes, false}, ordered{0, bytes, true};
    keep(cuMemAlloc(&plain.address, bytes), plain);
    keep(cuMemAllocAsync(&ordered.address, bytes, stream), ordered);
  }
  Piece managed{0, 4 * kMiB, false}, pitched{0, 4096 * 1024, false};
  std::size_t pitch = 0;
  keep(cuMemAllocManaged(&managed.address, managed.bytes, CU_MEM_ATTACH_GLOBAL), managed);
  keep(cuMemAllocPitch(&pitched.address, &pitch, 4096, 1024, 4), pitched);
}

void use(const std::vector<Piece>& pieces, CUstream stream) {
  for (const Piece& piece : pieces) cuMemsetD8Async(piece.address, 1, piece.bytes, stream);
  for (std::size_t i = 1; i < pieces.size(); ++i) cuMemcpyDtoDAsync(pieces[i].address, pieces[0].address, 1000, stream);
}

void give_back(const std::vector<Piece>& pieces, CUstream stream) {
  for (const Piece& piece : pieces) {
    twice([&] { return piece.is_async ? cuMemFreeAsync(piece.address, stream) : cuMemFree(piece.address); });
  }
}

}  // namespace

int main() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  const bool has_started = twice([] { return cuInit(0); }) == CUDA_SUCCESS &&
                           twice([&] { return cuDeviceGet(&device, 0); }) == CUDA_SUCCESS &&
                           twice([&] { return cuDevicePrimaryCtxRetain(&context, device); }) == CUDA_SUCCESS &&
                           twice([&] { return cuCtxSetCurrent(context); }) == CUDA_SUCCESS &&
                           twice([&] { return cuStreamCreate(&stream, 0); }) == CUDA_SUCCESS;
  if (!has_started) {
    std::puts("not started");
    return 1;
  }
  const std::size_t before = free_bytes();
  for (int round = 0; round < 3; ++round) {
    std::vector<Piece> pieces;
    take(pieces, stream);
    use(pieces, stream);
    twice([] { return cuCtxSynchronize(); });
    give_back(pieces, stream);
  }
  const std::size_t after = free_bytes();
  if (after != before) std::printf("free before %zu after %zu\n", before, after);
  std::puts("done");
}
