// Published figures that the profiles must reproduce (GB/s = bytes per nanosecond).
#include <cmath>
#include <numbers>

#include "tests/simgpu/model/link.hpp"
#include "tests/unit/simgpu/model_gpu.hpp"

namespace hmshim::simgpu {
namespace {

constexpr std::uint64_t kStreamBytes = 256U << 20;

double gbps(std::uint64_t bytes, TimeNs ns) { return static_cast<double>(bytes) / static_cast<double>(ns); }

Profile small_device(Profile profile) {
  profile.capacity_bytes = 1ULL << 30;
  return profile;
}

TEST(ModelCalibration, a_stream_of_single_faults_reaches_0_12_gbps_on_pcie5) {  // MSched
  Gpu gpu(small_device(shipped_profile("rtx5080-16g-pcie5")));
  const std::uint64_t bytes = 8 * kBlockBytes;
  const std::uint64_t a = gpu.managed(bytes);
  gpu.demote(a, bytes);
  const std::uint64_t sink = gpu.device(bytes);
  const TimeNs begin = gpu.model.now();
  EXPECT_EQ(gpu.model.copy(gpu.stream, {sink, a, bytes, [] {}}), Status::kOk);
  gpu.sync();
  EXPECT_NEAR(gbps(bytes, gpu.model.now() - begin), 0.12, 0.12 * 0.15);
}

TEST(ModelCalibration, batched_migration_reaches_41_7_gbps_on_pcie5) {  // MSched
  Gpu gpu(small_device(shipped_profile("rtx5080-16g-pcie5")));
  const std::uint64_t a = gpu.managed(kStreamBytes);
  gpu.demote(a, kStreamBytes);
  const TimeNs begin = gpu.model.now();
  gpu.prefetch(a, kStreamBytes);
  EXPECT_NEAR(gbps(kStreamBytes, gpu.model.now() - begin), 41.7, 41.7 * 0.03);
}

/// Prefetches into a full device: bytes both ways over the time it takes.
double swap_gbps(const std::string& profile_name, Duplex duplex) {
  Profile profile = small_device(shipped_profile(profile_name));
  profile.eviction_duplex = duplex;
  Gpu gpu(profile);
  const std::uint64_t resident = gpu.managed(profile.capacity_bytes);
  const std::uint64_t a = gpu.managed(kStreamBytes);
  gpu.demote(a, kStreamBytes);
  gpu.demote(resident, profile.capacity_bytes);  // its host pages are there already
  gpu.prefetch(resident, profile.capacity_bytes);
  const TimeNs begin = gpu.model.now();
  gpu.prefetch(a, kStreamBytes);
  EXPECT_EQ(gpu.d2h(Cause::kEviction), kStreamBytes);
  return gbps(2 * kStreamBytes, gpu.model.now() - begin);
}

TEST(ModelCalibration, swapping_reaches_41_7_gbps_serialised_and_63_5_pipelined_on_pcie5) {  // MSched
  EXPECT_NEAR(swap_gbps("rtx5080-16g-pcie5", Duplex::kSerialised), 41.7, 41.7 * 0.03);
  EXPECT_NEAR(swap_gbps("rtx5080-16g-pcie5", Duplex::kFull), 63.5, 63.5 * 0.03);
}

TEST(ModelCalibration, the_transfer_size_curve_follows_the_published_fit) {  // UVMSmart
  const Profile profile = shipped_profile("v100-32g-pcie3");
  for (std::uint64_t kib = 4; kib <= 2048; kib += kib < 64 ? 1 : 37) {
    const double fit = 2 / std::numbers::pi * std::atan(0.07292 * static_cast<double>(kib));
    EXPECT_NEAR(machine::curve_efficiency(profile, kib << 10), fit, 0.03 * fit) << kib << " KiB";
  }
  EXPECT_NEAR(12 * machine::curve_efficiency(profile, 4 << 10), 2.17, 0.01);
  EXPECT_NEAR(12 * machine::curve_efficiency(profile, 64 << 10), 10.39, 0.01);
  EXPECT_NEAR(12 * machine::curve_efficiency(profile, 2 << 20), 11.95, 0.01);
}

}  // namespace
}  // namespace hmshim::simgpu
