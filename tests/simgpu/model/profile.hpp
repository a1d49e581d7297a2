#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace hmshim::simgpu {

/// Virtual nanoseconds. Signed, so that differences are plain.
using TimeNs = std::int64_t;

/// How two opposite directions of the link behave towards each other.
enum class Duplex {
  kSerialised,  ///< a copy starts only when the opposite direction is idle too
  kFull,        ///< both directions run at once, together at most Profile::link_total_gbps
};

/// Share of the bulk bandwidth that a copy of a given size reaches. Between two points: linear.
struct CurvePoint {
  std::uint64_t bytes;
  double efficiency;  ///< in (0, 1]
};

/// Everything the model knows about one device type and its host. Filled only from a file under tests/simgpu/profiles:
/// there a line reads `key = value  # source`. GB/s are 1e9 bytes a second.
struct Profile {
  std::string name;  ///< what cuDeviceGetName answers
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;

  std::uint64_t capacity_bytes = 0;  ///< device memory, a multiple of 2 MiB
  double hbm_gbps = 0;               ///< read + write traffic
  std::uint64_t host_ram_bytes = 0;  ///< what managed memory may ever occupy on the host

  double link_h2d_gbps = 0;  ///< bulk rate, one direction alone
  double link_d2h_gbps = 0;
  double link_total_gbps = 0;                    ///< both directions together
  double host_copy_gbps = 0;                     ///< memcpy within the host
  std::vector<CurvePoint> link_curve;            ///< by size, at least one point
  Duplex planned_duplex = Duplex::kFull;         ///< copies and prefetches asked for by the guest
  Duplex eviction_duplex = Duplex::kSerialised;  ///< a driver eviction and the copy that takes the victim's chunk

  std::uint32_t fault_batch_faults = 0;  ///< distinct 64 KiB regions one fault group serves at most
  TimeNs fault_group_ns = 0;             ///< service of one group, without its blocks and copies
  TimeNs fault_block_ns = 0;             ///< service of one 2 MiB block in a group, without its copies
  TimeNs copy_engine_fault_page_ns = 0;  ///< one non-replayable fault of one 4 KiB page, its copy included
  TimeNs cpu_fault_block_ns = 0;         ///< the CPU touching a block that is not on the host, without its copy

  TimeNs prefetch_call_ns = 0;
  TimeNs prefetch_block_ns = 0;        ///< host time per block and pass
  TimeNs demote_block_first_ns = 0;    ///< host time per block without host pages; an eviction pays what this exceeds:
  TimeNs demote_block_later_ns = 0;    ///< host time per block that has host pages
  std::uint64_t demote_run_bytes = 0;  ///< blocks of one demote whose copies and mappings pipeline
  TimeNs discard_block_ns = 0;
  TimeNs advise_call_ns = 0;
  TimeNs advise_block_ns = 0;
  TimeNs collapse_block_ns = 0;  ///< a write that ends read duplication of a block
  TimeNs evict_block_ns = 0;     ///< unmap of a victim, without its copy
  TimeNs steal_unused_ns = 0;    ///< taking over an UNUSED chunk
  TimeNs thrashing_lapse_ns =
      0;  ///< migrations of a block so near to each other are thrashing; 0: the driver does not look
  std::uint32_t access_counter_threshold =
      0;  ///< remote accesses of a block until it migrates; 0: they are not counted

  TimeNs launch_host_ns = 0;      ///< host time of one launch or asynchronous operation
  TimeNs launch_device_ns = 0;    ///< from "ready" to running on the device
  TimeNs call_host_ns = 0;        ///< host time of any other call
  TimeNs alloc_host_ns = 0;       ///< host time of an allocation or a free
  std::uint32_t queue_depth = 0;  ///< unfinished operations of a stream before an enqueue blocks
};

/// Why a profile could not be read: "<file>:<line>: <what is wrong and what would be right>".
class ProfileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws ProfileError for an unreadable file, a line that is no `key = value  # source`, an unknown, repeated or
/// missing key, a value out of range, or a value without a source.
[[nodiscard]] Profile load_profile(const std::string& path);

}  // namespace hmshim::simgpu
