#pragma once

#include <bit>
#include <cstdint>
#include <list>
#include <map>
#include <vector>

#include "tests/simgpu/model/link.hpp"
#include "tests/simgpu/model/model.hpp"
#include "tests/simgpu/model/thrashing.hpp"

namespace hmshim::simgpu::machine {

/// One bit per 64 KiB region of a block.
using RegionMask = std::uint32_t;

/// Lists of root chunks, in the order in which the driver takes them (uvm.md B4).
enum class ChunkList { kUnused, kDiscarded, kUsed };

struct Block;

/// A block as one device sees it.
struct BlockOnDevice {
  RegionMask resident = 0;
  bool has_chunk = false;
  bool is_accessed_by = false;
  bool is_remote_mapped = false;           ///< the driver lets it reach the host's copy instead of faulting
  std::uint64_t remote_accesses = 0;       ///< since it was mapped so
  ChunkList list = ChunkList::kUsed;       ///< valid with a chunk
  std::list<Block*>::iterator position{};  ///< valid with a chunk
  TimeNs ready_at_ns = 0;                  ///< the last copy towards the device has arrived
};

/// A VA block: at most 2 MiB of one managed allocation.
struct Block {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  RegionMask all = 0;        ///< regions that exist
  RegionMask populated = 0;  ///< touched by anyone: holds content
  RegionMask on_host = 0;
  RegionMask host_backed = 0;  ///< host pages exist; they stay when the content moves on (uvm.md B11)
  RegionMask discarded = 0;
  bool is_read_mostly = false;
  /// Smaller than 2 MiB, or cut by advice on a part of it: the driver never moves such a block on its lists (uvm.md
  /// B1).
  bool is_small = false;
  Location preferred = kNowhere;
  Location last_prefetch = kNowhere;
  TimeNs host_ready_at_ns = 0;
  TimeNs demoted_at_ns = -1;
  Thrashing thrashing;
  std::vector<BlockOnDevice> devices;

  /// Regions that overlap a range / that lie wholly inside it. The block's last region may be short.
  [[nodiscard]] RegionMask overlapping(Range range) const;
  [[nodiscard]] RegionMask inside(Range range) const;
  [[nodiscard]] std::uint64_t bytes_of(RegionMask regions) const;
  [[nodiscard]] std::uint32_t block_regions() const { return static_cast<std::uint32_t>(std::popcount(all)); }
};

/// What a device access to some regions of a block needs before it can go on.
struct AccessNeed {
  RegionMask fault = 0;      ///< not mapped here: must be served by a fault
  RegionMask remote = 0;     ///< mapped to the host's memory, goes over the link
  bool is_collapse = false;  ///< a write to a read-duplicated block
  [[nodiscard]] bool is_fault() const { return fault != 0 || is_collapse; }
};

/// The outcome of moving a block: when its bytes have arrived.
struct Move {
  Status status = Status::kOk;
  TimeNs ready_at_ns = 0;
};

/// Managed memory: which block is where, whose chunk it holds, and what the driver does when memory runs out.
/// Changes state at once and puts the copies on the links; who pays host or fault-service time is the caller's
/// business.
class Residency {
 public:
  explicit Residency(const Profile& profile, int device_count);

  void add(const Allocation& allocation);
  void remove(const Allocation& allocation);
  /// nullptr outside managed memory.
  [[nodiscard]] Block* find(std::uint64_t address);

  /// Chunks of device allocations: never evicted. ready_at_ns: when the last victim has left.
  [[nodiscard]] Move take_device_chunks(int device, std::uint64_t chunks, TimeNs now_ns);
  void return_device_chunks(int device, std::uint64_t chunks);

  /// Notices pages the CPU wrote before any device touched the block. Called before a block's first use.
  [[nodiscard]] Status observe_first_touch(Block& block);
  [[nodiscard]] AccessNeed need_of(const Block& block, int device, RegionMask regions, AccessKind kind) const;
  /// What the driver does about a fault of a processor: serve it, let the processor wait, or map the host's copy. The
  /// mapping is made.
  [[nodiscard]] Thrashing::Hint judge_fault(Block& block, Location requester, TimeNs now_ns);
  /// Pins for thrashing end by themselves.
  void expire_pin(Block& block, TimeNs now_ns);
  /// The access counters of a device that reaches a block over the link: the block may migrate, beside the access.
  [[nodiscard]] Status count_remote_access(Block& block, int device, std::uint64_t bytes, TimeNs now_ns);
  /// The density prefetcher: what a group of faulted regions grows to (uvm.md B3).
  [[nodiscard]] static RegionMask expand_faults(const Block& block, int device, RegionMask faulted);
  /// Puts regions into the device's memory. `kind` kRead keeps duplicates of a read-mostly block, the others collapse
  /// them.
  [[nodiscard]] Move move_to_device(Block& block, int device, RegionMask regions, AccessKind kind, Cause cause,
                                    TimeNs now_ns);
  [[nodiscard]] Move move_to_host(Block& block, RegionMask regions, bool keeps_duplicates, Cause cause, TimeNs now_ns);
  /// Content of regions that the access may use is undefined after a discard: poison for a reader, a hazard in the
  /// figures for both. The access of a writer ends the discard.
  void use_discarded(Block& block, int device, RegionMask regions, AccessKind kind);
  /// A prefetch makes discarded regions usable again; their content is lost.
  void revive_discarded(Block& block, RegionMask regions);
  /// `device`: whose figures count it.
  void discard(Block& block, int device, RegionMask regions);
  void advise(Block& block, Advice advice, Location where);
  /// Remote access: the host pages exist from now on.
  [[nodiscard]] Status populate_on_host(Block& block, RegionMask regions);

  [[nodiscard]] std::uint64_t free_chunks(int device) const { return device_of(device).free_chunks; }
  [[nodiscard]] std::uint64_t total_chunks() const { return total_chunks_; }
  [[nodiscard]] std::uint64_t host_bytes() const { return host_bytes_; }
  [[nodiscard]] std::uint64_t peak_host_bytes() const { return peak_host_bytes_; }
  [[nodiscard]] DeviceStats& stats(int device) { return device_of(device).stats; }
  [[nodiscard]] Link& link(int device) { return device_of(device).link; }
  /// One fault-service thread per device: when it is done with what it has.
  [[nodiscard]] TimeNs& fault_service_free_at(int device) { return device_of(device).fault_service_free_at_ns; }

 private:
  struct Device {
    explicit Device(const Profile& profile) : link(profile) {}
    std::uint64_t free_chunks = 0;
    std::array<std::list<Block*>, 3> lists;  ///< indexed by ChunkList, victims at the front
    Link link;
    TimeNs fault_service_free_at_ns = 0;
    DeviceStats stats;
  };
  [[nodiscard]] Device& device_of(int device) { return devices_[static_cast<std::size_t>(device)]; }
  [[nodiscard]] const Device& device_of(int device) const { return devices_[static_cast<std::size_t>(device)]; }

  [[nodiscard]] Move acquire_chunk(int device, TimeNs now_ns, bool* evicted);
  [[nodiscard]] Move evict(int device, Block& victim, TimeNs now_ns);
  void attach_chunk(int device, Block& block);
  void detach_chunk(int device, Block& block);
  /// Puts the block's chunk at the tail of the list that its state asks for. On the list already: only a migration
  /// moves it.
  void relist(int device, Block& block, bool was_migrated);
  void unset_read_mostly(Block& block);
  static void unmap_remote(Block& block);
  void set_resident(int device, Block& block, RegionMask regions);
  void drop_other_copies(Block& block, Location keeper, RegionMask regions);
  [[nodiscard]] bool has_copy_elsewhere(const Block& block, int device, RegionMask regions) const;
  [[nodiscard]] Status charge_host(Block& block, RegionMask regions);
  [[nodiscard]] TimeNs copy(int device, Direction direction, std::uint64_t bytes, TimeNs earliest_ns, Cause cause,
                            Duplex duplex);

  const Profile* profile_;
  std::uint64_t total_chunks_;
  std::vector<Device> devices_;
  std::map<std::uint64_t, std::vector<Block>> ranges_;  ///< by the allocation's address
  std::uint64_t host_bytes_ = 0;
  std::uint64_t peak_host_bytes_ = 0;
};

}  // namespace hmshim::simgpu::machine
