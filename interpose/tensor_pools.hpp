// The pools of tensors: one for each context that allocates, and the driver's memory pools as the guest sees them. The
// driver's own handles stay: they name our pool of their context, and the settings that the guest makes stay the
// driver's.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>

#include "interpose/engine_host.hpp"
#include "interpose/graphs.hpp"
#include "uvm/tensor_pool.hpp"

namespace hmshim::interpose {

class Shim;

// What the guest is told of a refused allocation. Throws std::bad_alloc where it is neither the driver's error nor the
// program's limit: the driver shall say itself.
[[nodiscard]] CUresult refused(std::uint64_t bytes, const uvm::Error& error);

class TensorPools final : public uvm::TensorObserver, public Discarder, public GraphMemory {
 public:
  explicit TensorPools(Shim& shim) : shim_(shim) {}

  // The pool of the calling thread's context, made at its first use; null where its device is not managed, or there is
  // no context.
  [[nodiscard]] uvm::TensorPool* current();
  // The pool in whose memory the address lies; null where it is in none.
  [[nodiscard]] uvm::TensorPool* holder(CUdeviceptr address) const noexcept;

  // Each launch and copy comes through here: one comparison for a stream that is known.
  void note_work(CUstream stream) {
    if (seen_of(stream).load(std::memory_order_relaxed) != seen_entry(stream)) note_new_work(stream);
  }
  void stream_ends(CUstream stream);
  void context_ended(std::uint64_t context);

  // The guest's call and its books. Nothing is thrown once the pool has acted.
  [[nodiscard]] CUresult allocate(uvm::TensorPool& pool, CUdeviceptr* address, std::uint64_t bytes,
                                  std::optional<CUstream> stream);
  [[nodiscard]] CUresult free(uvm::TensorPool& pool, CUdeviceptr address, std::optional<CUstream> stream);

  // Of all contexts of a device.
  [[nodiscard]] uvm::PoolBytes bytes(std::uint16_t device) const;
  void reset_high(std::uint16_t device);
  void trim(std::uint16_t device, std::uint64_t keep_bytes);

  // Pools of the guest's own. We cannot stand in for the memory of all of them: only for plain device memory.
  void created(CUmemoryPool pool, const CUmemPoolProps& properties);
  void destroyed(CUmemoryPool pool);
  [[nodiscard]] bool is_foreign(CUmemoryPool pool) const;
  // The managed device for whose memory the handle stands; nothing where the driver's own answer stands.
  [[nodiscard]] std::optional<std::uint16_t> device_of(CUmemoryPool pool) const;
  void set_current(std::uint16_t device, CUmemoryPool pool);
  [[nodiscard]] bool is_current_foreign(std::uint16_t device) const;

  void discard(std::span<const policy::ExtentId> extents) noexcept override;

  std::uint64_t pin(std::uint64_t address) noexcept override;
  void unpin(std::uint64_t base) noexcept override;

  void allocated(const uvm::Allocation& allocation) noexcept override;
  void retired(const uvm::Allocation& allocation) noexcept override;
  void revived(const uvm::Allocation& allocation) noexcept override;
  void reshaped(std::span<const policy::ExtentId> before, std::span<const uvm::Allocation> after) noexcept override;
  void freed(const uvm::Allocation& allocation) noexcept override;
  [[nodiscard]] bool is_resident(policy::ExtentId extent) const noexcept override;
  [[nodiscard]] bool is_capturing() const noexcept override;

 private:
  // Of contexts alive at a time; a context is a few hundred megabytes of device memory.
  static constexpr std::size_t kMostPools = 1024;
  // One of a context that has ended serves the next.
  struct Entry {
    std::atomic<uvm::TensorPool*> pool{nullptr};  // never deleted: other threads may be inside
    std::atomic<bool> has_context{false};         // set after `pool`, and read before it
  };
  // Streams that the pools have heard of, by a few bits of the handle. An entry is the handle, of 48 bits, and as much
  // of the generation as fits: old entries match nothing.
  using Seen = std::array<std::atomic<std::uint64_t>, 64>;
  [[nodiscard]] std::uint64_t seen_entry(CUstream stream) const noexcept {
    return (reinterpret_cast<std::uintptr_t>(stream) & ((std::uint64_t{1} << 48) - 1)) |
           generation_.load(std::memory_order_relaxed) << 48;
  }
  [[nodiscard]] std::atomic<std::uint64_t>& seen_of(CUstream stream) noexcept {
    static thread_local std::atomic<std::uint64_t> own{0};  // of CU_STREAM_PER_THREAD each thread has its own
    const auto bits = reinterpret_cast<std::uintptr_t>(stream);
    return stream == CU_STREAM_PER_THREAD ? own : seen_[(bits ^ bits >> 4 ^ bits >> 10) % std::tuple_size_v<Seen>];
  }
  void note_new_work(CUstream stream);
  [[nodiscard]] uvm::TensorPool* find(std::uint64_t context) const noexcept;
  [[nodiscard]] std::size_t unused_entry() const noexcept;
  [[nodiscard]] std::span<const Entry> entries() const noexcept {
    return {entries_.data(), count_.load(std::memory_order_acquire)};
  }

  Shim& shim_;
  std::array<Entry, kMostPools> entries_;
  std::atomic<std::size_t> count_{0};
  std::atomic<std::uint64_t> generation_{1};  // changes whenever what has been seen is no longer enough
  Seen seen_{};

  mutable std::mutex mutex_;                                      // guards what follows, and the making of pools
  std::map<CUmemoryPool, std::optional<std::uint16_t>> created_;  // nothing: foreign
  std::set<std::uint16_t> devices_with_foreign_;
};

}  // namespace hmshim::interpose
