#pragma once

#include <optional>
#include <vector>

#include "tests/simgpu/model/memory.hpp"
#include "tests/simgpu/model/residency.hpp"
#include "tests/simgpu/model/va_space_lock.hpp"

namespace hmshim::simgpu::machine {

/// What work acts on.
struct Machine {
  Profile profile;
  AddressSpace memory;
  Residency residency;
  VaSpaceLock va_space;
  std::vector<Status> device_status;  ///< sticky

  Machine(Profile the_profile, int device_count)
      : profile(std::move(the_profile)),
        memory(device_count),
        residency(profile, device_count),
        device_status(static_cast<std::size_t>(device_count), Status::kOk) {}
  [[nodiscard]] Status& status_of(int device) { return device_status[static_cast<std::size_t>(device)]; }
};

/// Something that takes virtual time, in steps: between two of them others act on the same machine.
class Work {
 public:
  virtual ~Work() = default;
  /// Acts at `now_ns`; returns when to step again (not before now), or nothing once it needs no more steps.
  [[nodiscard]] virtual std::optional<TimeNs> step(TimeNs now_ns) = 0;
  /// After the last step: when the stream may go on.
  [[nodiscard]] virtual TimeNs completes_at(TimeNs now_ns) const { return now_ns; }
};

/// A kernel: walks its accesses, faulting in groups, then computes.
class KernelWork : public Work {
 public:
  KernelWork(Machine& machine, int device, std::vector<Access> accesses, TimeNs duration_ns);
  std::optional<TimeNs> step(TimeNs now_ns) override;

 private:
  struct Fault {
    std::uint64_t address;
    AccessNeed need;
    AccessKind kind;
  };
  struct Cursor {
    std::size_t access = 0;
    std::uint64_t offset = 0;
  };
  enum class Phase { kStarting, kWalking, kComputing, kWalkingAgain, kDone };
  /// Walks on until the end, a full fault group, a fault that is throttled or, unless it `can_fault`, the first fault.
  /// What it passes is settled.
  [[nodiscard]] std::vector<Fault> collect(TimeNs now_ns, bool can_fault);
  [[nodiscard]] TimeNs serve(const std::vector<Fault>& group, TimeNs now_ns);
  void access_remotely(std::uint64_t bytes, AccessKind kind);
  [[nodiscard]] bool lost_blocks_since(TimeNs time_ns);
  void die(Status status) { machine_->status_of(device_) = status; }

  Machine* machine_;
  int device_;
  std::vector<Access> accesses_;
  TimeNs duration_ns_;
  Phase phase_ = Phase::kStarting;
  Cursor cursor_;
  TimeNs walk_began_ns_ = 0;
  TimeNs compute_began_ns_ = 0;
  TimeNs remote_until_ns_ = 0;
  TimeNs retry_at_ns_ = 0;
};

/// A copy or, without a source, a fill.
class CopyWork : public Work {
 public:
  CopyWork(Machine& machine, int device, std::uint64_t destination, std::optional<std::uint64_t> source,
           std::uint64_t bytes);
  std::optional<TimeNs> step(TimeNs now_ns) override;

 private:
  /// The side of the link where a piece is, after the copy engine's faults on it; `free_at_ns` grows by their service.
  [[nodiscard]] Location locate(Range piece, AccessKind kind, TimeNs& free_at_ns);
  [[nodiscard]] TimeNs transfer(Location to, std::optional<Location> from, std::uint64_t bytes, TimeNs now_ns);

  Machine* machine_;
  int device_;
  std::uint64_t destination_;
  std::optional<std::uint64_t> source_;
  std::uint64_t bytes_;
  std::uint64_t done_bytes_ = 0;
  /// Faults of the current piece are served; the transfer starts at the next step.
  struct Located {
    Location to;
    std::optional<Location> from;
    std::uint64_t bytes;
  };
  std::optional<Located> located_;
};

enum class MigrationKind { kPrefetch, kDemote, kDiscard };

/// What the driver does for a prefetch, demote or discard: block by block, on the time of whoever steps it.
class MigrationWork : public Work {
 public:
  MigrationWork(Machine& machine, MigrationKind kind, int device, Range range);
  std::optional<TimeNs> step(TimeNs now_ns) override;
  TimeNs completes_at(TimeNs now_ns) const override;
  [[nodiscard]] Status status() const { return status_; }
  /// Takes the address space's lock, as the first step does otherwise. False as long as somebody keeps it out.
  [[nodiscard]] bool try_lock() { return is_locking_ = machine_->va_space.try_read(); }

 private:
  [[nodiscard]] std::optional<TimeNs> begin(TimeNs now_ns);
  [[nodiscard]] TimeNs block_cost(std::uint64_t address);
  void apply(std::uint64_t address, TimeNs now_ns);

  Machine* machine_;
  MigrationKind kind_;
  int device_;
  Range range_;
  int passes_left_;
  std::uint64_t next_;  ///< address in the next block
  bool has_begun_ = false;
  bool is_locking_ = false;
  std::uint64_t run_bytes_ = 0;  ///< demoted since the host last waited
  TimeNs ready_at_ns_ = 0;
  Status status_ = Status::kOk;
};

}  // namespace hmshim::simgpu::machine
