// What a stream can be asked to do: enqueued at once, or kept as a graph node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "tests/simgpu/driver/driver.hpp"

namespace hmshim::simgpu {

struct KernelWork {
  const Code* code = nullptr;
  CUfunction function = nullptr;  // as given at the launch: one of function and kernel
  CUkernel kernel = nullptr;
  CUcontext context = nullptr;
  int device = 0;
  unsigned grid[3] = {};
  unsigned block[3] = {};
  unsigned shared_bytes = 0;
  std::vector<std::byte> arguments;  // packed as Code::image lays them out
};

// Rows of `width` bytes at two pitches; linear copies have one row.
struct CopyWork {
  std::uint64_t destination = 0;
  std::uint64_t source = 0;
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t depth = 1;
  std::size_t destination_pitch = 0;
  std::size_t source_pitch = 0;
  std::size_t destination_slice = 0;  // bytes from one depth to the next
  std::size_t source_slice = 0;
};

struct FillWork {
  std::uint64_t destination = 0;
  std::size_t pitch = 0;  // ignored for one row
  unsigned value = 0;
  unsigned element_bytes = 1;  // 1, 2 or 4
  std::size_t width = 0;       // elements
  std::size_t height = 1;
};

struct HostWork {
  CUhostFn function = nullptr;
  void* data = nullptr;
};

struct RecordWork {
  CUevent event = nullptr;
};

struct WaitWork {
  CUevent event = nullptr;
};

struct ValueWork {
  bool is_write = false;
  std::uint64_t address = 0;
  std::uint64_t value = 0;
  int bytes = 4;
  WaitCondition condition = WaitCondition::kGreaterOrEqual;  // of a wait
};

struct EmptyWork {};

// A graph inside a graph: its nodes in an order that respects their edges.
struct ChildGraphWork;

using Work = std::variant<KernelWork, CopyWork, FillWork, HostWork, RecordWork, WaitWork, ValueWork, EmptyWork,
                          std::shared_ptr<const ChildGraphWork>>;

struct ChildGraphWork {
  CUgraph graph = nullptr;  // the clone that cuGraphChildGraphNodeGetGraph answers
  std::vector<Work> works;
};

// Enqueues on the model.
[[nodiscard]] CUresult execute(const Work& work, StreamId stream);
// Enqueues, or appends to the graph that the stream captures.
[[nodiscard]] CUresult submit(Stream& stream, Work work);

// A copy of pitched memory. CUDA_ERROR_NOT_SUPPORTED for CUDA arrays, CUDA_ERROR_INVALID_VALUE for a pitch below the
// width. Given: CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER.
template <class Given>
[[nodiscard]] CUresult to_work(const Given& given, CopyWork& work);

// CU_STREAM_LEGACY and NULL, CU_STREAM_PER_THREAD, or a created stream; nullptr for anything else.
[[nodiscard]] Stream* find_stream(CUstream handle);

/// Of SIMGPU_READ and its like.
[[nodiscard]] AccessKind access_kind(int simgpu_kind);

/// Duration of the calling thread's last kernel, as its footprint says it; 0 where it does not.
[[nodiscard]] std::uint64_t last_kernel_ns();

}  // namespace hmshim::simgpu
