// A model with round numbers, and the few calls that every test of it makes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/simgpu/model/model.hpp"
#include "tests/support/guest_process.hpp"

namespace hmshim::simgpu {

inline constexpr TimeNs kBlockCopyNs = 100'000;  ///< 2 MiB over the link of round_profile(), either direction

/// Every action has a time that can be told from the others in a sum.
inline Profile round_profile() {
  Profile profile;
  profile.name = "round";
  profile.compute_major = 8;
  profile.multiprocessors = 1;
  profile.capacity_bytes = 4 * kBlockBytes;
  profile.hbm_gbps = 20.97152;  // 2 MiB in 100 us
  profile.host_ram_bytes = 1ULL << 40;
  profile.host_copy_gbps = 20.97152;
  profile.link_h2d_gbps = 20.97152;
  profile.link_d2h_gbps = 20.97152;
  profile.link_total_gbps = 2 * 20.97152;
  profile.link_curve = {{1, 1.0}};
  profile.planned_duplex = Duplex::kFull;
  profile.eviction_duplex = Duplex::kSerialised;
  profile.fault_batch_faults = 256;
  profile.fault_group_ns = 10'000;
  profile.fault_block_ns = 2'000;
  profile.copy_engine_fault_page_ns = 30'000;
  profile.cpu_fault_block_ns = 5'000;
  profile.prefetch_call_ns = 700;
  profile.prefetch_block_ns = 300;
  profile.demote_block_first_ns = 9'000;
  profile.demote_block_later_ns = 4'000;
  profile.demote_run_bytes = 8 * kBlockBytes;
  profile.discard_block_ns = 600;
  profile.advise_call_ns = 50;
  profile.advise_block_ns = 20;
  profile.collapse_block_ns = 1'500;
  profile.evict_block_ns = 800;
  profile.steal_unused_ns = 400;
  profile.thrashing_lapse_ns = 0;
  profile.launch_host_ns = 10;
  profile.launch_device_ns = 5;
  profile.call_host_ns = 1;
  profile.alloc_host_ns = 2;
  profile.queue_depth = 1024;
  return profile;
}

inline Profile shipped_profile(const std::string& name) {
  return load_profile((support::source_dir() / "tests/simgpu/profiles" / (name + ".profile")).string());
}

/// One guest thread's view: a non-blocking stream of device 0, every call expected to succeed.
class Gpu {
 public:
  explicit Gpu(Profile profile = round_profile(), int device_count = 1)
      : model({.profile = std::move(profile),
               .device_count = device_count,
               .capacity_bytes = {},
               .host_ram_bytes = {},
               .on_stall = {}}) {
    EXPECT_EQ(model.create_stream(0, StreamKind::kNonBlocking, &stream), Status::kOk);
  }

  std::uint64_t managed(std::uint64_t bytes) {
    std::uint64_t address = 0;
    EXPECT_EQ(model.allocate_managed(0, bytes, &address), Status::kOk);
    return address;
  }
  std::uint64_t device(std::uint64_t bytes) {
    std::uint64_t address = 0;
    EXPECT_EQ(model.allocate_device(0, bytes, &address), Status::kOk);
    return address;
  }
  void launch(std::vector<Access> accesses, TimeNs duration_ns = 0, Body body = nullptr) {
    EXPECT_EQ(model.launch(stream, {std::move(accesses), duration_ns, std::move(body)}), Status::kOk);
  }
  void sync() { EXPECT_EQ(model.synchronize_stream(stream), Status::kOk); }
  void read(std::uint64_t address, std::uint64_t bytes = kBlockBytes) {
    launch({{address, bytes, AccessKind::kRead}});
    sync();
  }
  void write(std::uint64_t address, std::uint64_t bytes = kBlockBytes) {
    launch({{address, bytes, AccessKind::kWrite}});
    sync();
  }
  void prefetch(std::uint64_t address, std::uint64_t bytes = kBlockBytes, Location to = 0) {
    EXPECT_EQ(model.prefetch(stream, {address, bytes}, to), Status::kOk);
    sync();
  }
  void demote(std::uint64_t address, std::uint64_t bytes = kBlockBytes) { prefetch(address, bytes, kHost); }
  void discard(std::uint64_t address, std::uint64_t bytes = kBlockBytes) {
    EXPECT_EQ(model.discard(stream, {address, bytes}), Status::kOk);
    sync();
  }
  void advise(std::uint64_t address, Advice advice, Location where = 0, std::uint64_t bytes = kBlockBytes) {
    EXPECT_EQ(model.advise({address, bytes}, advice, where), Status::kOk);
  }
  /// Block `index` of an allocation.
  static std::uint64_t block(std::uint64_t address, std::uint64_t index) { return address + index * kBlockBytes; }
  BlockState state(std::uint64_t address) { return model.block_state(address).value(); }
  bool on_device(std::uint64_t address, std::size_t device_index = 0) { return state(address).on_device[device_index]; }
  DeviceStats stats(std::size_t device_index = 0) { return model.stats().devices[device_index]; }
  std::uint64_t h2d(Cause cause) { return stats().h2d_bytes[static_cast<std::size_t>(cause)]; }
  std::uint64_t d2h(Cause cause) { return stats().d2h_bytes[static_cast<std::size_t>(cause)]; }
  std::uint64_t free_bytes() {
    MemInfo info;
    EXPECT_EQ(model.mem_info(0, &info), Status::kOk);
    return info.free_bytes;
  }

  Model model;
  StreamId stream = 0;
};

inline unsigned char& byte_at(std::uint64_t address) { return *reinterpret_cast<unsigned char*>(address); }

}  // namespace hmshim::simgpu
