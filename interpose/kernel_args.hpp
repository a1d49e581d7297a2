// Which managed extents a kernel launch names: every aligned 8-byte word of its parameters is tested against the
// allocation table.
//
// The driver tells offset and size of each parameter but no type (cuFuncGetParamInfo, cuKernelGetParamInfo; CUDA 12.4),
// so pointers inside by-value structs are found the same way as plain ones. Sizes and offsets are in bytes.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "policy/event.hpp"
#include "uvm/allocation_table.hpp"
#include "uvm/driver_api.hpp"

namespace hmshim::interpose {

// cudart 13 passes CUkernel handles where other callers pass CUfunction, and the two are asked by different calls.
enum class HandleKind : std::uint8_t { Function, Kernel };

// One parameter large enough to hold a pointer.
struct PointerParam {
  std::uint32_t index;   // position in kernelParams
  std::uint32_t offset;  // position in the packed buffer of `extra`
  std::uint32_t words;   // whole 8-byte words
  bool operator==(const PointerParam&) const = default;
};

struct ParamLayout {
  std::vector<PointerParam> params;
  std::uint32_t bytes = 0;   // end of the last parameter
  std::uint64_t kernel = 0;  // who it is: the same in every process where the driver tells names (CUDA 12.3)
  bool operator==(const ParamLayout&) const = default;
};

// Asks the driver; nothing where it does not answer. May throw std::bad_alloc.
[[nodiscard]] std::optional<ParamLayout> ask_layout(const void* handle, HandleKind kind, const uvm::DriverApi& driver);

// What the driver calls a kernel; null where it does not tell (before CUDA 12.3).
[[nodiscard]] const char* ask_name(const void* handle, HandleKind kind, const uvm::DriverApi& driver) noexcept;

// Handle → parameter layout. find() is lock-free: it runs at every launch.
class KernelLayouts {
 public:
  KernelLayouts();
  ~KernelLayouts();
  KernelLayouts(const KernelLayouts&) = delete;
  KernelLayouts& operator=(const KernelLayouts&) = delete;

  // All of these may throw std::bad_alloc.
  // A handle the guest was given, of a module or library (any non-null identity) whose unloading ends it.
  void learn(const void* handle, HandleKind kind, const void* owner);
  // The function behind a kernel in one context: the driver asks of it as of any function, and it goes with the
  // kernel's library.
  void learn_function_of(const void* function, const void* kernel);
  // Forgets the handles of an unloaded module or library; their addresses may come back as something else.
  void forget(const void* owner);

  // Nothing for a handle that is not known.
  [[nodiscard]] std::optional<HandleKind> kind_of(const void* handle);

  // The layout of a handle seen by learn(); asks the driver once, on the first launch. Null when the handle is unknown
  // or the driver does not answer: the launch then names nothing, which costs time, never data.
  [[nodiscard]] const ParamLayout* find(const void* handle, const uvm::DriverApi& driver);

 private:
  struct Slot {
    std::atomic<std::uintptr_t> handle{0};
    std::atomic<const ParamLayout*> layout{nullptr};
  };
  struct Index {
    explicit Index(std::size_t slots) : mask(slots - 1), slot(slots) {}
    std::size_t mask;
    std::vector<Slot> slot;
  };
  struct Known {
    HandleKind kind;
    const void* owner;
  };

  [[nodiscard]] const ParamLayout* find_slow(const void* handle, const uvm::DriverApi& driver);
  void publish(std::uintptr_t handle, const ParamLayout* layout);
  [[nodiscard]] const ParamLayout* intern(ParamLayout layout);

  std::atomic<const Index*> index_;
  std::mutex mutex_;
  std::vector<Index*>
      indexes_;  // superseded ones too: a reader may still walk one; sizes double, so they sum to less than the last
  std::size_t used_ = 0;  // slots of the current index that hold or held a handle
  std::unordered_map<const void*, Known> known_;
  std::unordered_map<const void*, std::vector<const void*>> handles_of_;
  std::unordered_multimap<std::uint64_t, const ParamLayout*>
      layouts_;  // interned by content, so that reloading modules costs no memory
};

// The extents a launch names, in order of appearance; one entry per run of equal neighbours. Fixed room: launches are
// not the place to allocate. What exceeds it is not seen, as far as one launch goes; whoever has more starts again.
class Touched {
 public:
  void add(uvm::Hit hit) noexcept {
    if (count_ == policy::kMaxTouched || (count_ > 0 && extents_[count_ - 1] == hit.extent)) return;
    extents_[count_++] = hit.extent;
  }
  void clear() noexcept { count_ = 0; }
  [[nodiscard]] std::span<const policy::ExtentId> extents() const noexcept { return {extents_, count_}; }

 private:
  std::size_t count_ = 0;
  policy::ExtentId extents_[policy::kMaxTouched];
};

// The buffer of a launch's `extra`; empty where there is none.
[[nodiscard]] std::span<const unsigned char> packed_params(void** extra) noexcept;

// Calls visit(data, words) for each parameter of a launch. A buffer shorter than the layout is the guest's error to be
// told by the driver; nothing past its end is read.
template <class Visit>
void for_each_param(const ParamLayout& layout, void** kernel_params, void** extra, Visit&& visit) {
  if (kernel_params != nullptr) {
    for (const PointerParam& param : layout.params) visit(kernel_params[param.index], param.words);
    return;
  }
  const std::span<const unsigned char> packed = packed_params(extra);
  for (const PointerParam& param : layout.params) {
    if (param.offset + std::size_t{param.words} * sizeof(std::uint64_t) <= packed.size())
      visit(static_cast<const void*>(packed.data() + param.offset), param.words);
  }
}

// Adds what a launch names. Exactly one of `kernel_params` and `extra` is set (CUDA driver API, cuLaunchKernel); with
// neither the kernel takes none.
void collect_launch(const ParamLayout& layout, void** kernel_params, void** extra, const uvm::AllocationTable& table,
                    Touched& out) noexcept;

}  // namespace hmshim::interpose
