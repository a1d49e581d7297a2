#include "tests/simgpu/driver/work.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/simgpu/driver/capture.hpp"
#include "tests/simgpu/simgpu.h"

// The list that a kernel's description fills.
struct simgpu_footprint {
  std::vector<hmshim::simgpu::Access> accesses;
  hmshim::simgpu::TimeNs duration_ns = hmshim::simgpu::kDurationFromBytes;
};

namespace hmshim::simgpu {
namespace {

thread_local std::uint64_t t_last_kernel_ns = 0;

// A launch as the test's functions see it; owns what they may look at.
class LaunchView {
 public:
  explicit LaunchView(const KernelWork& work) : arguments_(work.arguments) {
    for (const Parameter& parameter : work.code->image.parameters) {
      parameters_.push_back(arguments_.data() + parameter.offset_bytes);
    }
    launch_.kernel = work.code->image.name.c_str();
    std::copy_n(work.grid, 3, launch_.grid);
    std::copy_n(work.block, 3, launch_.block);
    launch_.shared_bytes = work.shared_bytes;
    launch_.device = work.device;
    launch_.parameter_count = parameters_.size();
    launch_.parameters = parameters_.data();
    launch_.parameter_bytes = work.code->parameter_bytes.data();
  }
  LaunchView(const LaunchView&) = delete;
  LaunchView& operator=(const LaunchView&) = delete;

  [[nodiscard]] const simgpu_launch* get() const noexcept { return &launch_; }

 private:
  std::vector<std::byte> arguments_;
  std::vector<const void*> parameters_;
  simgpu_launch launch_{};
};

// Nothing of the model lies below: words that are numbers, not addresses, are sorted out without asking it.
std::uint64_t lowest_address() {
  static const std::uint64_t lowest = [] {
    std::uint64_t least = Model::managed_base();
    for (int device = 0; device < driver().model->device_count(); ++device) {
      least = std::min(least, Model::device_base(device));
    }
    return least;
  }();
  return lowest;
}

// What the runtime handed out, by address: a library under test may have cut it from a larger allocation.
struct Tensors {
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> ends;
};

// Never destroyed, like the driver.
Tensors& tensors() {
  static auto* const made = new Tensors;
  return *made;
}

// The end of the tensor that `address` lies in, `otherwise` where the runtime told of none.
std::uint64_t end_of_tensor(std::uint64_t address, std::uint64_t otherwise) {
  const std::lock_guard lock(tensors().mutex);
  auto next = tensors().ends.upper_bound(address);
  if (next == tensors().ends.begin()) return otherwise;
  --next;
  return address < next->second ? next->second : otherwise;
}

// What a kernel without description touches: each tensor or allocation its parameters point into, from the pointer to
// the end.
std::vector<Access> operands(const KernelWork& work) {
  std::vector<Access> accesses;
  const std::uint64_t lowest = lowest_address();
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= work.arguments.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, work.arguments.data() + at, sizeof word);
    if (word < lowest) continue;
    const auto allocation = driver().model->find_allocation(word);
    // What is freed in stream order lives until then, but no operand lies there: a word of padding only.
    if (!allocation || !driver().find_memory(word)) continue;
    const std::uint64_t end = end_of_tensor(word, allocation->address + allocation->bytes);
    const Access access{word, end - word, AccessKind::kReadWrite};
    const bool is_known = std::ranges::any_of(accesses, [&](const Access& a) { return a.address == access.address; });
    if (!is_known) accesses.push_back(access);
  }
  return accesses;
}

CUresult execute_on(const KernelWork& work, StreamId stream) {
  Kernel kernel;
  const Registration& registration = *work.code->registration;
  if (const simgpu_describe describe = registration.describe.load(std::memory_order_acquire)) {
    const LaunchView view(work);
    simgpu_footprint footprint;
    describe(view.get(), &footprint);
    kernel.accesses = std::move(footprint.accesses);
    kernel.duration_ns = footprint.duration_ns;
    t_last_kernel_ns = static_cast<std::uint64_t>(std::max<TimeNs>(footprint.duration_ns, 0));
  } else {
    kernel.accesses = operands(work);
    t_last_kernel_ns = 0;
  }
  if (const simgpu_body body = registration.body.load(std::memory_order_acquire)) {
    kernel.body = [body, view = std::make_shared<LaunchView>(work)] { body(view->get()); };
  }
  return to_result(driver().model->launch(stream, std::move(kernel)));
}

// A copy with pitches is one operation of the model over the rows' bytes, starting at the first row: the padding
// between rows is neither timed nor migrated.
CUresult execute_on(const CopyWork& work, StreamId stream) {
  Copy copy{.destination = work.destination,
            .source = work.source,
            .bytes = work.width * work.height * work.depth,
            .body = {}};
  if (work.height * work.depth > 1) {
    copy.body = [work] {
      for (std::size_t z = 0; z < work.depth; ++z) {
        for (std::size_t y = 0; y < work.height; ++y) {
          std::memmove(
              reinterpret_cast<void*>(work.destination + z * work.destination_slice + y * work.destination_pitch),
              reinterpret_cast<const void*>(work.source + z * work.source_slice + y * work.source_pitch), work.width);
        }
      }
    };
  }
  return to_result(driver().model->copy(stream, std::move(copy)));
}

void fill(const FillWork& work) {
  for (std::size_t y = 0; y < work.height; ++y) {
    auto* const row = reinterpret_cast<unsigned char*>(work.destination + y * work.pitch);
    if (work.element_bytes == 1) {
      std::memset(row, static_cast<int>(work.value), work.width);
    } else if (work.element_bytes == 2) {
      std::fill_n(reinterpret_cast<std::uint16_t*>(row), work.width, static_cast<std::uint16_t>(work.value));
    } else {
      std::fill_n(reinterpret_cast<std::uint32_t*>(row), work.width, work.value);
    }
  }
}

CUresult execute_on(const FillWork& work, StreamId stream) {
  return to_result(driver().model->fill(stream, {.destination = work.destination,
                                                 .bytes = work.width * work.height * work.element_bytes,
                                                 .body = [work] { fill(work); }}));
}

CUresult execute_on(const HostWork& work, StreamId stream) {
  return to_result(driver().model->host_function(stream, [work] { work.function(work.data); }));
}

CUresult execute_on(const RecordWork& work, StreamId stream) {
  const Event* event = driver().events.find(work.event);
  return event == nullptr ? CUDA_ERROR_INVALID_HANDLE : to_result(driver().model->record_event(event->id, stream));
}

CUresult execute_on(const WaitWork& work, StreamId stream) {
  const Event* event = driver().events.find(work.event);
  return event == nullptr ? CUDA_ERROR_INVALID_HANDLE : to_result(driver().model->wait_event(stream, event->id));
}

CUresult execute_on(const ValueWork& work, StreamId stream) {
  Model& model = *driver().model;
  if (work.is_write) return to_result(model.write_value(stream, work.address, work.value, work.bytes));
  return to_result(model.wait_value(stream, work.address, work.value, work.bytes, work.condition));
}

CUresult execute_on(const EmptyWork&, StreamId) { return CUDA_SUCCESS; }

CUresult execute_on(const std::shared_ptr<const ChildGraphWork>& child, StreamId stream) {
  for (const Work& work : child->works) {
    if (const CUresult result = execute(work, stream); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult execute(const Work& work, StreamId stream) {
  return std::visit([stream](const auto& concrete) { return execute_on(concrete, stream); }, work);
}

CUresult submit(Stream& stream, Work work) {
  if (stream.capture.load(std::memory_order_acquire) != nullptr) [[unlikely]]
    return append(stream, std::move(work));
  if (stream.is_legacy) {
    if (const CUresult result = check_legacy_stream(stream); result != CUDA_SUCCESS) return result;
  }
  return execute(work, stream.id);
}

AccessKind access_kind(int simgpu_kind) {
  switch (simgpu_kind) {
    case SIMGPU_READ:
      return AccessKind::kRead;
    case SIMGPU_WRITE:
      return AccessKind::kWrite;
    default:
      return AccessKind::kReadWrite;
  }
}

std::uint64_t last_kernel_ns() { return t_last_kernel_ns; }

}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

__attribute__((visibility("default"))) void simgpu_note_tensor(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(tensors().mutex);
  if (bytes == 0) {
    tensors().ends.erase(address);
  } else {
    tensors().ends[address] = address + bytes;
  }
}

__attribute__((visibility("default"))) void simgpu_touch(simgpu_footprint* footprint, uint64_t address, uint64_t bytes,
                                                         int kind) {
  footprint->accesses.push_back({address, bytes, access_kind(kind)});
}

__attribute__((visibility("default"))) void simgpu_set_duration_ns(simgpu_footprint* footprint, int64_t duration_ns) {
  footprint->duration_ns = duration_ns;
}

}  // extern "C"
