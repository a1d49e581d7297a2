#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/simgpu/model/profile.hpp"

namespace hmshim::simgpu {

inline constexpr std::uint64_t kBlockBytes = 2U << 20;    ///< VA block and GPU root chunk (UVM_VA_BLOCK_BITS 21)
inline constexpr std::uint64_t kRegionBytes = 64U << 10;  ///< residency granularity inside a block: a big page
inline constexpr std::uint64_t kPageBytes = 4096;
/// What every byte of lost content reads as: a discarded page that was read, evicted or stolen.
inline constexpr unsigned char kPoisonByte = 0xDB;

using StreamId = std::uint32_t;
using EventId = std::uint32_t;
using AgentId = std::uint32_t;
inline constexpr AgentId kGuest = 0;  ///< all threads that are no agents
/// A device ordinal, or kHost.
using Location = int;
inline constexpr Location kHost = -1;
inline constexpr Location kNowhere = -2;

enum class Status {
  kOk,
  kNotReady,          ///< a query: work is still pending
  kInvalidValue,      ///< an argument, a range outside of one allocation, a device that does not exist
  kInvalidHandle,     ///< stream, event or agent unknown (destroyed)
  kOutOfMemory,       ///< device memory with nothing left to evict, or host RAM for managed pages
  kIllegalAddress,    ///< sticky: a kernel or copy touched an unallocated device or managed address
  kFaultOutOfMemory,  ///< sticky: a fault could not be served; on hardware the context dies (uvm.md B11)
  kNotPermitted,      ///< called from inside a body
};
[[nodiscard]] const char* to_string(Status status);

// ---- memory ----

enum class MemoryKind { kDevice, kManaged };

struct Allocation {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  ///< as asked for
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;  ///< owner; the device current at allocation for managed memory
};

struct MemInfo {
  std::uint64_t free_bytes = 0;  ///< chunks attached to nothing. A demoted block keeps its chunk: not counted as free
  std::uint64_t total_bytes = 0;
};

enum class Advice {
  kSetReadMostly,
  kUnsetReadMostly,
  kSetPreferredLocation,
  kUnsetPreferredLocation,
  kSetAccessedBy,
  kUnsetAccessedBy,
};

/// Where one 2 MiB block of managed memory is, for tests and range attributes.
struct BlockState {
  bool on_host = false;                ///< at least one 64 KiB region is resident on the host
  std::vector<bool> on_device;         ///< the same, per device
  std::vector<bool> has_chunk;         ///< a chunk is attached, resident or not (UNUSED), per device
  std::vector<std::uint32_t> regions;  ///< resident 64 KiB regions per device, bit i = region i
  bool is_populated = false;           ///< ever touched by anyone
  bool is_discarded = false;           ///< every resident region is discarded
  bool is_read_mostly = false;
  Location preferred = kNowhere;
  Location last_prefetch = kNowhere;
  std::vector<bool> accessed_by;  ///< per device
};

// ---- work ----

enum class AccessKind { kRead, kWrite, kReadWrite };

/// One byte range an operation touches. A range outside the model's own address ranges is host memory.
struct Access {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  AccessKind kind = AccessKind::kReadWrite;
};

/// Runs on the thread that drives the simulation, at the operation's virtual end, without any lock of the model held.
/// A body must not throw, nor call the model: only what "costs nothing" answers it, all else gives
/// Status::kNotPermitted.
using Body = std::function<void()>;

/// Let the model derive the duration from the bytes touched and the HBM bandwidth.
inline constexpr TimeNs kDurationFromBytes = -1;

struct Kernel {
  std::vector<Access> accesses;  ///< walked in this order, block by block
  TimeNs duration_ns = kDurationFromBytes;
  Body body;
};

struct Copy {
  std::uint64_t destination = 0;
  std::uint64_t source = 0;
  std::uint64_t bytes = 0;
  Body body;  ///< instead of the plain memmove(destination, source, bytes), e.g. for pitched copies
};

struct Fill {
  std::uint64_t destination = 0;
  std::uint64_t bytes = 0;
  Body body;  ///< writes the pattern; required
};

struct Range {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

enum class StreamKind { kBlocking, kNonBlocking };

/// cuStreamWaitValue's conditions, in the driver's numbering.
enum class WaitCondition { kGreaterOrEqual = 0, kEqual = 1, kAnd = 2, kNor = 3 };

// ---- figures ----

/// Why bytes crossed the link: the driver's migration causes, and what is no migration.
enum class Cause {
  kUser,       ///< prefetch or demote asked for by the guest
  kCoherence,  ///< the CPU, or a write that collapsed duplicates
  kDemand,     ///< far faults and the density prefetcher's expansion of them
  kEviction,
  kCopy,            ///< memcpy: no migration
  kRemote,          ///< access to host memory over the link, nothing migrates
  kAccessCounters,  ///< remote accesses that were too many
};
inline constexpr std::size_t kCauseCount = 7;
[[nodiscard]] const char* to_string(Cause cause);

struct DeviceStats {
  std::array<std::uint64_t, kCauseCount> h2d_bytes{};  ///< indexed by Cause
  std::array<std::uint64_t, kCauseCount> d2h_bytes{};
  std::uint64_t fault_groups = 0;
  std::uint64_t faulted_blocks = 0;
  std::uint64_t copy_engine_faults = 0;  ///< pages of 4 KiB, one fault each
  std::uint64_t evicted_blocks = 0;      ///< USED or DISCARDED chunks taken from a block
  std::uint64_t stolen_unused_chunks = 0;
  std::uint64_t discarded_bytes = 0;
  std::uint64_t dropped_bytes = 0;         ///< discarded content lost to an eviction: never copied
  std::uint64_t writes_after_discard = 0;  ///< hazard: 64 KiB regions written after discard without a prefetch between
  std::uint64_t reads_after_discard = 0;   ///< hazard: regions read while discarded; they read as poison
  std::uint64_t throttled_faults = 0;      ///< of this device, on blocks that it and others fight over
  std::uint64_t remote_pins = 0;           ///< blocks that it reaches over the link since, for that reason
  std::uint64_t resident_bytes = 0;        ///< managed, now
  std::uint64_t peak_resident_bytes = 0;
  std::uint64_t kernels = 0;
  TimeNs kernel_busy_ns = 0;  ///< sum of durations without stalls
  TimeNs stall_ns = 0;        ///< kernels waiting for faults or remote access
};

struct Stats {
  std::vector<DeviceStats> devices;
  std::uint64_t host_managed_bytes = 0;  ///< managed bytes with host pages behind them, resident or cached
  std::uint64_t peak_host_managed_bytes = 0;
  std::uint64_t live_allocations = 0;
  TimeNs now_ns = 0;  ///< the caller's virtual clock
};

// ---- the model ----

namespace machine {  // the inside of the model: its names must not meet those of its users
struct Op;
enum class MigrationKind;
}  // namespace machine

struct Options {
  Profile profile;
  int device_count = 1;
  std::optional<std::uint64_t> capacity_bytes;  ///< per device, instead of the profile's; rounded down to 2 MiB
  std::optional<std::uint64_t> host_ram_bytes;  ///< instead of the profile's
  /// Gets one text after `stall_report_s` real seconds in which a waiting thread saw no progress: what each agent and
  /// each unfinished stream waits for. Null: the text goes to stderr. The wait itself goes on.
  std::function<void(const std::string&)> on_stall;
  int stall_report_s = 20;
};

/// The simulated machine: devices, their memory, the links, the streams, in virtual time.
///
/// TIME. Every call costs its caller virtual time (Profile), then the simulation runs up to the caller's clock, then
/// the call takes effect. Threads of the guest share one clock; an agent (a thread that called attach_agent) has its
/// own. Virtual time never passes an agent, nor the guest, while it is not waiting in a blocking call of the model;
/// equal times are settled by agent id, the guest first. So a run with one guest thread, and any number of agents, is
/// the same to the byte at every real speed of its threads. Host work between calls takes no virtual time: sleep_until
/// models it.
///
/// THREADS. Every member may be called from any thread. A blocking call releases the model while it waits. Operations
/// that only enqueue never wait for a body that another thread runs.
///
/// ADDRESSES. Memory is real and accessible from the host (bodies work on it). Device d's memory is handed out from
/// device_base(d), managed memory from managed_base(), lowest free address first: a fixed order of calls gets fixed
/// addresses. Blocks of 1 MiB and more are 2 MiB aligned and rounded, smaller device allocations share chunks (512-byte
/// aligned), every managed allocation starts its own VA block. Freed addresses fault until they are reused. At most one
/// Model exists at a time, because the addresses are fixed.
///
/// NOT SEEN. The CPU touching managed memory by plain loads and stores: only a first touch before the GPU's is noticed.
/// host_access() tells the model about others.
class Model {
 public:
  /// Throws std::runtime_error when the address range cannot be reserved, std::invalid_argument for a bad option.
  explicit Model(Options options);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] const Profile& profile() const;  ///< with the overrides of Options applied
  [[nodiscard]] int device_count() const;
  [[nodiscard]] static std::uint64_t device_base(int device);
  [[nodiscard]] static std::uint64_t managed_base();
  /// True inside a body, on its thread: the caller must not call the model (cuLaunchHostFunc's rule).
  [[nodiscard]] static bool in_body();
  /// The sticky error of a device, kOk while it is alive. Every call that names a dead device returns it.
  [[nodiscard]] Status device_status(int device) const;

  // -- memory. Costs alloc_host_ns.

  /// Takes chunks, evicting managed blocks where none is free. kOutOfMemory: even that would not be enough.
  [[nodiscard]] Status allocate_device(int device, std::uint64_t bytes, std::uint64_t* address);
  /// Reserves addresses only: populated on first touch, so it may exceed everything (uvm.md B11).
  [[nodiscard]] Status allocate_managed(int device, std::uint64_t bytes, std::uint64_t* address);
  /// Takes the first address of an allocation. Waits for all work enqueued so far on the owner (managed: on every
  /// device).
  [[nodiscard]] Status free_memory(std::uint64_t address);
  /// Frees when the stream gets there. Until then the address is not reused.
  [[nodiscard]] Status free_async(StreamId stream, std::uint64_t address);
  /// The allocation that contains an address, device or managed. Costs nothing.
  [[nodiscard]] std::optional<Allocation> find_allocation(std::uint64_t address) const;
  [[nodiscard]] Status mem_info(int device, MemInfo* info);

  // -- managed memory. Ranges must lie in managed allocations (kInvalidValue).

  /// Host-synchronous, one range; `where` is a device or kHost for the two that take a location, else ignored.
  [[nodiscard]] Status advise(Range range, Advice advice, Location where);
  /// `destination` = kHost demotes. On an idle stream it runs in the caller's own host time, block by block; on a busy
  /// one it is handed to the process's one deferred worker and its errors are found only in the device's figures. Over
  /// more than one block towards a device: two passes (uvm.md B5). kOutOfMemory when nothing could be evicted or the
  /// host is full.
  [[nodiscard]] Status prefetch(StreamId stream, Range range, Location destination);
  /// Only 64 KiB regions wholly inside the range. Takes effect in stream order, like a prefetch.
  [[nodiscard]] Status discard(StreamId stream, Range range);
  /// The CPU touches managed memory: migrates to the host, in the caller's time.
  [[nodiscard]] Status host_access(Access access);
  /// State of the block that contains a managed address; nullopt elsewhere. Costs nothing; as of the caller's clock.
  [[nodiscard]] std::optional<BlockState> block_state(std::uint64_t address);

  // -- streams and events

  [[nodiscard]] Status create_stream(int device, StreamKind kind, StreamId* stream);
  /// Work already enqueued still runs. Default streams cannot be destroyed (kInvalidHandle).
  [[nodiscard]] Status destroy_stream(StreamId stream);
  /// Its operations wait for all blocking streams of the device, and those for its operations.
  [[nodiscard]] StreamId legacy_stream(int device) const;
  /// The calling thread's own blocking stream, made on first use.
  [[nodiscard]] StreamId per_thread_stream(int device);
  [[nodiscard]] Status stream_device(StreamId stream, int* device) const;
  [[nodiscard]] Status synchronize_stream(StreamId stream);
  [[nodiscard]] Status query_stream(StreamId stream);
  [[nodiscard]] Status synchronize_device(int device);

  [[nodiscard]] Status create_event(int device, EventId* event);
  [[nodiscard]] Status destroy_event(EventId event);
  [[nodiscard]] Status record_event(EventId event, StreamId stream);
  /// Later work of `stream` waits for the event's latest record so far; never recorded: no wait. Across devices too.
  [[nodiscard]] Status wait_event(StreamId stream, EventId event);
  [[nodiscard]] Status synchronize_event(EventId event);
  [[nodiscard]] Status query_event(EventId event);  ///< kOk also when never recorded
  /// kInvalidHandle: one was never recorded. kNotReady: one is still pending.
  [[nodiscard]] Status event_elapsed(EventId start, EventId end, TimeNs* elapsed_ns);

  // -- operations: enqueue only, cost launch_host_ns, run in stream order

  [[nodiscard]] Status launch(StreamId stream, Kernel kernel);
  /// Follow it with synchronize_stream for a synchronous copy. Managed pages that are not mapped on the stream's device
  /// fault page by page (hardware_truths.md 4).
  [[nodiscard]] Status copy(StreamId stream, Copy copy);
  [[nodiscard]] Status fill(StreamId stream, Fill fill);
  [[nodiscard]] Status host_function(StreamId stream, Body body);
  /// `address` may be any accessible memory; `bytes` is 4 or 8.
  [[nodiscard]] Status write_value(StreamId stream, std::uint64_t address, std::uint64_t value, int bytes);
  /// Re-examined after every operation, at every call and, while a thread waits with nothing else to do, every
  /// millisecond.
  [[nodiscard]] Status wait_value(StreamId stream, std::uint64_t address, std::uint64_t value, int bytes,
                                  WaitCondition condition);

  // -- time and agents

  [[nodiscard]] TimeNs now() const;  ///< the caller's clock; costs nothing
  /// The caller (guest or agent) lets virtual time pass up to `time_ns`; returns at once when that is over.
  void sleep_until(TimeNs time_ns);
  /// Registers an agent that runs from the caller's time on. Call it BEFORE starting the thread: until the agent waits,
  /// time stands still, however long the thread takes to start.
  [[nodiscard]] AgentId register_agent(const std::string& name);
  /// Makes the calling thread the agent: its calls cost the agent's clock.
  [[nodiscard]] Status attach_agent(AgentId agent);
  /// Ends the calling thread's agent: time no longer waits for it.
  void detach_agent();
  /// The calling agent waits, for ever, until someone wakes it; a wake that came before is not lost (one is kept).
  void idle();
  /// Like idle(), but also ends when the `bytes` at `memory` are no longer `seen`, or at `deadline_ns` (0: never). What
  /// is watched must be written by operations of streams only, or the moment of the end is not settled by virtual time.
  void watch(const void* memory, const void* seen, std::size_t bytes, TimeNs deadline_ns);
  /// The calling agent goes on as many ns later as its id says. Agents that one event woke then act one by one, and
  /// what they share outside of the model is the same in every run.
  void take_turn();
  /// Ends idle() or watch() of an agent at the later of its own and the caller's clock.
  [[nodiscard]] Status wake_agent(AgentId agent);
  /// The caller is about to wait outside of the model, e.g. to join an agent's thread: time does not wait for it until
  /// end_external_wait. What happens meanwhile is settled by virtual time, the moment of the end is not.
  void begin_external_wait();
  void end_external_wait();
  /// The state of everything that waits, for a person.
  [[nodiscard]] std::string describe() const;

  [[nodiscard]] Stats stats() const;  ///< as of the caller's clock; costs nothing

 private:
  struct Impl;
  /// Adds an operation that `prepare(Op&)` completes, or refuses with a status.
  template <typename Prepare>
  Status enqueue(const char* label, StreamId stream, Prepare prepare,
                 const std::shared_ptr<machine::Op>* also_after = nullptr);
  Status migrate(StreamId stream, Range range, machine::MigrationKind kind, Location destination);

  std::unique_ptr<Impl> impl_;
};

}  // namespace hmshim::simgpu
