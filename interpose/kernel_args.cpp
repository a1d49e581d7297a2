#include "interpose/kernel_args.hpp"

#include <cstring>

namespace hmshim::interpose {

namespace {

constexpr std::size_t kFirstSlots = 1024;

// Handles are pointers: their low bits are alignment. Multiplicative hashing takes the high bits of the product.
std::size_t slot_of(std::uintptr_t handle) noexcept {
  return static_cast<std::size_t>((static_cast<std::uint64_t>(handle) * 0x9E3779B97F4A7C15ULL) >> 32);
}

std::uint64_t content_hash(const ParamLayout& layout) noexcept {
  std::uint64_t hash = layout.bytes ^ layout.kernel;
  for (const PointerParam& param : layout.params) {
    hash = (hash ^ param.index ^ (std::uint64_t{param.offset} << 16) ^ (std::uint64_t{param.words} << 40)) *
           0x100000001B3ULL;
  }
  return hash;
}

// FNV-1a of the name; of the handle where there is none.
std::uint64_t ask_identity(const void* handle, HandleKind kind, const uvm::DriverApi& driver) {
  const char* name = ask_name(handle, kind, driver);
  if (name == nullptr) return reinterpret_cast<std::uintptr_t>(handle);
  std::uint64_t hash = 0xCBF29CE484222325;
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 0x100000001B3;
  return hash;
}

// Adds what `words` 8-byte words at `data` point to.
void collect_words(const void* data, std::size_t words, const uvm::AllocationTable& table, Touched& out) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(data);
  const auto [low, span] = table.window();
  const auto word_at = [bytes](std::size_t at) noexcept {
    std::uint64_t word;
    std::memcpy(&word, bytes + at * sizeof word, sizeof word);
    return word;
  };
  const auto test = [&, low = low, span = span](std::uint64_t word) noexcept {
    if (word - low >= span) return;
    if (const uvm::Hit hit = table.find(word); hit.extent != policy::kNoExtent) out.add(hit);
  };
  // Most words of a large struct are sizes and strides: four at a time are dismissed by one branch.
  std::size_t at = 0;
  for (; at + 4 <= words; at += 4) {
    const std::uint64_t a = word_at(at), b = word_at(at + 1), c = word_at(at + 2), d = word_at(at + 3);
    if ((a - low < span) | (b - low < span) | (c - low < span) | (d - low < span)) {
      test(a);
      test(b);
      test(c);
      test(d);
    }
  }
  for (; at < words; ++at) test(word_at(at));
}

}  // namespace

const char* ask_name(const void* handle, HandleKind kind, const uvm::DriverApi& driver) noexcept {
  const char* name = nullptr;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (kind == HandleKind::Kernel && driver.cuKernelGetName != nullptr) {
    result = driver.cuKernelGetName(&name, static_cast<CUkernel>(const_cast<void*>(handle)));
  } else if (kind == HandleKind::Function && driver.cuFuncGetName != nullptr) {
    result = driver.cuFuncGetName(&name, static_cast<CUfunction>(const_cast<void*>(handle)));
  }
  return result == CUDA_SUCCESS ? name : nullptr;
}

// Every parameter in turn; CUDA_ERROR_INVALID_VALUE past the last one ends the list (cuda.h, cuFuncGetParamInfo).
std::optional<ParamLayout> ask_layout(const void* handle, HandleKind kind, const uvm::DriverApi& driver) {
  ParamLayout layout;
  layout.kernel = ask_identity(handle, kind, driver);
  for (std::uint32_t index = 0;; ++index) {
    std::size_t offset = 0;
    std::size_t size = 0;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (kind == HandleKind::Kernel && driver.cuKernelGetParamInfo != nullptr) {
      result = driver.cuKernelGetParamInfo(static_cast<CUkernel>(const_cast<void*>(handle)), index, &offset, &size);
    } else if (kind == HandleKind::Function && driver.cuFuncGetParamInfo != nullptr) {
      result = driver.cuFuncGetParamInfo(static_cast<CUfunction>(const_cast<void*>(handle)), index, &offset, &size);
    }
    if (result == CUDA_ERROR_INVALID_VALUE) return layout;
    if (result != CUDA_SUCCESS) return std::nullopt;
    layout.bytes = static_cast<std::uint32_t>(offset + size);
    if (size >= sizeof(std::uint64_t)) {
      layout.params.push_back(
          {index, static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size / sizeof(std::uint64_t))});
    }
  }
}

KernelLayouts::KernelLayouts() {
  indexes_.push_back(new Index(kFirstSlots));
  index_.store(indexes_.back(), std::memory_order_release);
}

KernelLayouts::~KernelLayouts() {
  for (const Index* index : indexes_) delete index;
  for (const auto& [hash, layout] : layouts_) delete layout;
}

void KernelLayouts::learn(const void* handle, HandleKind kind, const void* owner) {
  const std::lock_guard lock(mutex_);
  if (known_.insert_or_assign(handle, Known{kind, owner}).second) handles_of_[owner].push_back(handle);
}

void KernelLayouts::learn_function_of(const void* function, const void* kernel) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(kernel);
  if (known == known_.end()) return;
  const void* owner = known->second.owner;
  if (known_.insert_or_assign(function, Known{HandleKind::Function, owner}).second)
    handles_of_[owner].push_back(function);
}

void KernelLayouts::forget(const void* owner) {
  const std::lock_guard lock(mutex_);
  const auto handles = handles_of_.find(owner);
  if (handles == handles_of_.end()) return;
  for (const void* handle : handles->second) {
    known_.erase(handle);
    publish(reinterpret_cast<std::uintptr_t>(handle), nullptr);
  }
  handles_of_.erase(handles);
}

std::optional<HandleKind> KernelLayouts::kind_of(const void* handle) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(handle);
  return known == known_.end() ? std::nullopt : std::optional(known->second.kind);
}

const ParamLayout* KernelLayouts::find(const void* handle, const uvm::DriverApi& driver) {
  const auto key = reinterpret_cast<std::uintptr_t>(handle);
  const Index& index = *index_.load(std::memory_order_acquire);
  for (std::size_t at = slot_of(key);; ++at) {
    const Slot& slot = index.slot[at & index.mask];
    const std::uintptr_t present = slot.handle.load(std::memory_order_acquire);
    if (present == key) {
      if (const ParamLayout* layout = slot.layout.load(std::memory_order_acquire)) return layout;
      break;
    }
    if (present == 0) break;
  }
  return find_slow(handle, driver);
}

const ParamLayout* KernelLayouts::find_slow(const void* handle, const uvm::DriverApi& driver) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(handle);
  if (known == known_.end()) return nullptr;
  std::optional<ParamLayout> layout = ask_layout(handle, known->second.kind, driver);
  if (!layout) return nullptr;
  const ParamLayout* interned = intern(*std::move(layout));
  publish(reinterpret_cast<std::uintptr_t>(handle), interned);
  return interned;
}

const ParamLayout* KernelLayouts::intern(ParamLayout layout) {
  const std::uint64_t hash = content_hash(layout);
  const auto [first, last] = layouts_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (*it->second == layout) return it->second;
  }
  return layouts_.emplace(hash, new ParamLayout(std::move(layout)))->second;
}

// Null for `layout` forgets the handle; its slot stays, so that probing past it still works. The caller holds mutex_.
void KernelLayouts::publish(std::uintptr_t handle, const ParamLayout* layout) {
  Index* index = indexes_.back();
  for (std::size_t at = slot_of(handle);; ++at) {
    Slot& slot = index->slot[at & index->mask];
    const std::uintptr_t present = slot.handle.load(std::memory_order_relaxed);
    if (present == handle) {
      slot.layout.store(layout, std::memory_order_release);
      return;
    }
    if (present != 0) continue;
    if (layout == nullptr) return;
    if ((used_ + 1) * 2 <= index->slot.size()) {
      slot.layout.store(layout, std::memory_order_relaxed);
      slot.handle.store(handle, std::memory_order_release);
      ++used_;
      return;
    }
    break;
  }
  // Half full: copy the living into an index with room for twice their number.
  std::size_t living = 0;
  for (const Slot& slot : index->slot) living += slot.layout.load(std::memory_order_relaxed) != nullptr;
  std::size_t slots = kFirstSlots;
  while (slots < (living + 1) * 4) slots *= 2;
  auto* grown = new Index(slots);
  for (const Slot& slot : index->slot) {
    const ParamLayout* present = slot.layout.load(std::memory_order_relaxed);
    if (present == nullptr) continue;
    const std::uintptr_t key = slot.handle.load(std::memory_order_relaxed);
    std::size_t at = slot_of(key);
    while (grown->slot[at & grown->mask].handle.load(std::memory_order_relaxed) != 0) ++at;
    grown->slot[at & grown->mask].handle.store(key, std::memory_order_relaxed);
    grown->slot[at & grown->mask].layout.store(present, std::memory_order_relaxed);
  }
  used_ = living;
  indexes_.push_back(grown);
  index_.store(grown, std::memory_order_release);
  publish(handle, layout);
}

std::span<const unsigned char> packed_params(void** extra) noexcept {
  const unsigned char* buffer = nullptr;
  std::size_t bytes = 0;
  for (void** item = extra; item != nullptr && *item != CU_LAUNCH_PARAM_END; item += 2) {
    if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<const unsigned char*>(item[1]);
    } else if (*item == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = *static_cast<const std::size_t*>(item[1]);
    } else {
      return {};  // the driver will refuse it
    }
  }
  return {buffer, buffer != nullptr ? bytes : 0};
}

void collect_launch(const ParamLayout& layout, void** kernel_params, void** extra, const uvm::AllocationTable& table,
                    Touched& out) noexcept {
  for_each_param(layout, kernel_params, extra,
                 [&](const void* data, std::uint32_t words) { collect_words(data, words, table, out); });
}

}  // namespace hmshim::interpose
