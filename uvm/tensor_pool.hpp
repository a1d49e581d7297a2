// The tensors of one context: allocations cut from managed slabs, so that a free and the next allocation of the size
// never reach the driver, and each tensor is an extent with an exact lifetime.
//
// A free tensor keeps its device memory, and the next tenant of its size and stream gets it at once: what the
// application itself has freed need not travel, and mostly need not even be discarded. When the policy wants its device
// memory sooner, discard() drops it without a copy. That is the only act of the library that can lose data, hence:
// - only whole blocks of a run that is free, decided under the pool's lock;
// - behind everything that was enqueued before the free, in a stream of the pool's own;
// - nobody gets the run before the host has SEEN the discard complete: a discard that came late would hit the next
// owner;
// - whoever gets it then has it prefetched before he learns its address (Tensor::is_discarded).
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "policy/vocabulary.hpp"
#include "uvm/allocation_table.hpp"
#include "uvm/backing.hpp"
#include "uvm/block_runs.hpp"
#include "uvm/driver_api.hpp"
#include "uvm/mutex.hpp"
#include "uvm/result.hpp"
#include "uvm/small_tensors.hpp"
#include "uvm/stream_order.hpp"

namespace hmshim::uvm {

// Hears of every tensor that has an extent, in the order in which it happens: the calls are made under the pool's lock.
class TensorObserver {
 public:
  virtual ~TensorObserver() = default;
  // A new extent, the guest's.
  virtual void allocated(const Allocation& allocation) noexcept = 0;
  // The guest has freed it; its memory stays where it is.
  virtual void retired(const Allocation& allocation) noexcept = 0;
  // It is the guest's again.
  virtual void revived(const Allocation& allocation) noexcept = 0;
  // Retired extents have become others, of the same memory.
  virtual void reshaped(std::span<const policy::ExtentId> before, std::span<const Allocation> after) noexcept = 0;
  // A retired extent whose memory is gone.
  virtual void freed(const Allocation& allocation) noexcept = 0;

  // A belief, for preferring one run to another.
  [[nodiscard]] virtual bool is_resident(policy::ExtentId extent) const noexcept = 0;
  // While a stream is captured nothing may wait for the device or free memory.
  [[nodiscard]] virtual bool is_capturing() const noexcept = 0;
};

struct PoolConfig {
  std::uint16_t device = 0;
  std::uint64_t context = 0;       // must be current in every call but owns(), find(), bytes() and note_destroyed()
  std::uint64_t device_bytes = 0;  // the device's own memory, by which slabs are sized
  std::uint64_t device_threshold_bytes = 0;  // smaller tensors are device memory
  bool can_discard = false;
};

struct Tensor {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;                      // that it occupies
  policy::ExtentId extent = policy::kNoExtent;  // kNoExtent: device memory
  bool is_discarded = false;  // populate its memory before the guest gets the address, in the stream of the allocation
};

struct PoolBytes {
  std::uint64_t used = 0;       // by tensors, in whole blocks or slots
  std::uint64_t reserved = 0;   // of the driver
  std::uint64_t used_high = 0;  // the most so far, since reset_high()
  std::uint64_t reserved_high = 0;
};

// Any thread. No driver call is made under the lock.
class TensorPool {
 public:
  TensorPool(const DriverApi& api, AllocationTable& table, BackingStore& backing, TensorObserver& observer,
             const PoolConfig& config);
  TensorPool(const TensorPool&) = delete;
  TensorPool& operator=(const TensorPool&) = delete;

  // Memory that `stream` may use from now on; without a stream, every stream. Before an error is returned, all that is
  // idle has been given back to the driver. CUDA_ERROR_INVALID_HANDLE for a stream that is none.
  [[nodiscard]] Result<Tensor> allocate(std::uint64_t bytes, std::optional<CUstream> stream);
  // Frees the tensor that begins at `address`, in the order of `stream`; without one, after all that was enqueued
  // before. NotOurs (CUDA_ERROR_INVALID_VALUE) when no live tensor begins there.
  [[nodiscard]] Result<Tensor> free(std::uint64_t address, std::optional<CUstream> stream);
  // Nobody else gets the memory of the tensor that holds the address, free or not, and it keeps what it holds, before
  // it is unpinned as often: an executable graph names it. The base of the tensor, by which it is unpinned; 0 where the
  // address lies in none.
  std::uint64_t pin(std::uint64_t address);
  void unpin(std::uint64_t base);
  // Whether the address lies in memory of the pool, of a live tensor or not. The driver must not be asked to free it.
  [[nodiscard]] bool owns(std::uint64_t address) const;
  // The live tensor that holds the address, with the bytes that the guest asked for.
  [[nodiscard]] std::optional<Tensor> find(std::uint64_t address) const;

  // A stream has work: frees without a stream will be ordered behind it. False when that must be said again.
  bool note_work(CUstream stream);
  // Before the stream is destroyed.
  void forget(CUstream stream);

  // Drops the contents of those of the extents that are retired and free; the rest have owners again, or soon.
  void discard(std::span<const policy::ExtentId> extents);
  // The stream of the pool's own, in which discards run.
  [[nodiscard]] CUstream own_stream() const noexcept { return own_stream_; }

  // Gives slabs without a tensor back to the driver as long as more than `keep_bytes` are reserved; waits for the
  // device. The driver's error when it refuses one, which the pool then keeps. Nothing happens while a stream is
  // captured.
  CUresult trim(std::uint64_t keep_bytes);
  // The context is gone, and with it everything.
  void note_destroyed();

  [[nodiscard]] PoolBytes bytes() const;
  void reset_high();
  [[nodiscard]] const PoolConfig& config() const noexcept { return config_; }

 private:
  using Index = StreamOrder::Index;
  struct Arena {
    BlockRuns runs;
    std::uint64_t used_bytes = 0;
  };
  // Runs that are being discarded.
  struct Discard {
    CUevent event;     // behind it; null while a thread asks for it, and if it could not be recorded
    bool is_recorded;  // else only waiting for the device tells
    std::uint64_t at;  // when it was enqueued
    std::vector<Run*> runs;
  };

  [[nodiscard]] Arena& arena(Backing backing) HMSHIM_REQUIRES(mutex_) {
    return backing == Backing::Managed ? managed_ : device_;
  }
  [[nodiscard]] std::optional<Index> known(std::optional<CUstream> stream);
  [[nodiscard]] bool make_ordered(StreamOrder::Point point, Index requester);

  [[nodiscard]] Result<Tensor> allocate_run(Backing backing, std::uint64_t bytes, Index requester);
  [[nodiscard]] Result<Tensor> allocate_small(std::uint64_t bytes, Index requester);
  [[nodiscard]] std::optional<Tensor> take_slot(std::uint64_t bytes, Index requester);
  [[nodiscard]] std::optional<Tensor> take_run(Backing backing, std::uint64_t bytes, Index requester)
      HMSHIM_REQUIRES(mutex_);
  [[nodiscard]] std::optional<Tensor> take_unordered_run(Backing backing, std::uint64_t bytes, Index requester);
  [[nodiscard]] Result<Tensor> grow(Backing backing, std::uint64_t bytes, std::uint64_t slab_bytes, Index requester);
  void become_free(Backing backing, Run& run) HMSHIM_REQUIRES(mutex_);
  void join_neighbours(Backing backing, Index requester, bool joins_untouched) HMSHIM_REQUIRES(mutex_);

  [[nodiscard]] std::optional<Tensor> hand_out(Backing backing, Run& run, std::uint64_t bytes) HMSHIM_REQUIRES(mutex_);
  void cut(Backing backing, Run& run, std::uint64_t blocks) HMSHIM_REQUIRES(mutex_);
  [[nodiscard]] bool enter(Run& run) HMSHIM_REQUIRES(mutex_);
  void leave(Run& run) HMSHIM_REQUIRES(mutex_);
  [[nodiscard]] Allocation record_of(const Run& run) const noexcept;

  [[nodiscard]] std::uint64_t used_bytes() const HMSHIM_REQUIRES(mutex_) {
    return managed_.used_bytes + device_.used_bytes + small_.used_bytes();
  }
  [[nodiscard]] std::uint64_t reserved_bytes() const HMSHIM_REQUIRES(mutex_) {
    return managed_.runs.reserved_bytes() + device_.runs.reserved_bytes();
  }
  void note_used() HMSHIM_REQUIRES(mutex_) { used_high_bytes_ = std::max(used_high_bytes_, used_bytes()); }

  void reap_discards();
  void complete(Discard& discard) HMSHIM_REQUIRES(mutex_);
  [[nodiscard]] std::optional<Slab> detach_idle_slab(Backing backing) HMSHIM_REQUIRES(mutex_);

  const DriverApi& api_;
  AllocationTable& table_;
  BackingStore& backing_;
  TensorObserver& observer_;
  const PoolConfig config_;
  CUstream own_stream_ = nullptr;

  mutable Mutex mutex_{LockRank::TensorPool};
  Arena managed_ HMSHIM_GUARDED_BY(mutex_);
  Arena device_ HMSHIM_GUARDED_BY(mutex_);
  SmallTensors small_ HMSHIM_GUARDED_BY(mutex_);
  StreamOrder order_ HMSHIM_GUARDED_BY(mutex_);
  std::vector<Run*> run_of_extent_ HMSHIM_GUARDED_BY(mutex_);
  std::deque<Discard> discards_ HMSHIM_GUARDED_BY(mutex_);
  std::uint64_t used_high_bytes_ HMSHIM_GUARDED_BY(mutex_) = 0;
  std::uint64_t reserved_high_bytes_ HMSHIM_GUARDED_BY(mutex_) = 0;
};

}  // namespace hmshim::uvm
