#include "uvm/progress.hpp"

namespace hmshim::uvm {

namespace {

constexpr std::size_t kPageBytes = 4096;

CUdeviceptr address_of(const std::uint32_t* word) noexcept { return reinterpret_cast<CUdeviceptr>(word); }

}  // namespace

bool Progress::is_supported(const DriverApi& api) noexcept {
  return api.cuStreamWriteValue32_v2 != nullptr && api.cuStreamWaitValue32_v2 != nullptr &&
         api.cuMemHostAlloc != nullptr && api.cuCtxSetCurrent != nullptr && api.cuEventSynchronize != nullptr &&
         api.cuStreamCreateWithPriority != nullptr && api.cuCtxGetStreamPriorityRange != nullptr;
}

// With unified addressing the device knows the page by the host's address (cuda.h, cuMemHostAlloc).
CUresult Progress::allocate() noexcept {
  void* page = nullptr;
  const CUresult result = api_.cuMemHostAlloc(&page, kPageBytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (result == CUDA_SUCCESS) page_ = static_cast<std::uint32_t*>(page);
  return result;
}

CUresult Progress::report(CUstream stream, std::size_t index, std::uint64_t steps) const noexcept {
  return api_.cuStreamWriteValue32_v2(stream, address_of(page_ + index), static_cast<std::uint32_t>(steps),
                                      CU_STREAM_WRITE_VALUE_DEFAULT);
}

CUresult Progress::wait_until_open(CUstream stream, std::uint64_t steps) const noexcept {
  return api_.cuStreamWaitValue32_v2(stream, address_of(page_ + kGateWord), static_cast<std::uint32_t>(steps),
                                     CU_STREAM_WAIT_VALUE_GEQ);
}

void Progress::open(std::uint64_t steps) noexcept {
  std::atomic_ref(page_[kGateWord]).store(static_cast<std::uint32_t>(steps), std::memory_order_release);
}

Progress::Words Progress::read() const noexcept {
  Words words;
  for (std::size_t i = 0; i < kStreams; ++i) words[i] = std::atomic_ref(page_[i]).load(std::memory_order_acquire);
  return words;
}

}  // namespace hmshim::uvm
