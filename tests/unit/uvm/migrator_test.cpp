#include "uvm/migrator.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/uvm/fake_driver.hpp"

namespace hmshim::uvm {
namespace {

using policy::ActionKind;
using policy::Actions;
using policy::kBlockBytes;

constexpr std::uint64_t kBase = 0x7f1200000000;
const auto kStream = reinterpret_cast<CUstream>(0x51);

// An extent of `blocks` blocks, the last one used by a single byte, on device 1.
policy::ExtentId add(AllocationTable& table, std::uint64_t base, std::uint64_t blocks) {
  Allocation allocation{.base = base,
                        .bytes = (blocks - 1) * kBlockBytes + 1,
                        .driver_base = base,
                        .backed_bytes = blocks * kBlockBytes,
                        .device = 1};
  EXPECT_TRUE(table.insert(allocation));
  return allocation.extent;
}

TEST(Migrator, demote_goes_to_the_host_and_prefetch_to_the_extents_device_in_the_guests_stream) {
  FakeDriver driver;
  const DriverApi api = driver.api();
  AllocationTable table;
  const policy::ExtentId cold = add(table, kBase, 2);
  const policy::ExtentId hot = add(table, kBase + 2 * kBlockBytes, 1);
  Migrator migrator(api, table);
  migrator.execute(Actions{{ActionKind::Demote, cold}, {ActionKind::Prefetch, hot}}, kStream);
  EXPECT_EQ(driver.prefetches,
            (std::vector<FakeDriver::Prefetch>{
                {kBase, 2 * kBlockBytes, CU_DEVICE_CPU, kStream, false, CU_STREAM_CAPTURE_MODE_RELAXED},
                {kBase + 2 * kBlockBytes, kBlockBytes, 1, kStream, false, CU_STREAM_CAPTURE_MODE_RELAXED}}));
  EXPECT_EQ(driver.mode, CU_STREAM_CAPTURE_MODE_GLOBAL) << "the thread's mode is the guest's again";
  EXPECT_EQ(migrator.totals().demoted_bytes, 2 * kBlockBytes);
  EXPECT_EQ(migrator.totals().prefetched_bytes, kBlockBytes);
}

TEST(Migrator, no_call_is_longer_than_32_mib_and_together_they_cover_the_extent) {
  FakeDriver driver;
  const DriverApi api = driver.api();
  AllocationTable table;
  const policy::ExtentId extent = add(table, kBase, 37);
  Migrator migrator(api, table);
  migrator.execute(Actions{{ActionKind::Demote, extent}}, kStream);
  ASSERT_EQ(driver.prefetches.size(), 3u);
  std::uint64_t next = kBase;
  for (const FakeDriver::Prefetch& call : driver.prefetches) {
    EXPECT_EQ(call.base, next);
    EXPECT_LE(call.bytes, std::uint64_t{32} << 20);
    next += call.bytes;
  }
  EXPECT_EQ(next, kBase + 37 * kBlockBytes);
}

TEST(Migrator, the_old_abi_serves_where_the_driver_has_no_other) {
  FakeDriver driver;
  DriverApi api = driver.api();
  api.cuMemPrefetchAsync_v2 = nullptr;
  AllocationTable table;
  const policy::ExtentId extent = add(table, kBase, 1);
  Migrator migrator(api, table);
  migrator.execute(Actions{{ActionKind::Demote, extent}, {ActionKind::Prefetch, extent}}, kStream);
  ASSERT_EQ(driver.prefetches.size(), 2u);
  EXPECT_TRUE(driver.prefetches[0].is_old_abi);
  EXPECT_EQ(driver.prefetches[0].device, CU_DEVICE_CPU);
  EXPECT_EQ(driver.prefetches[1].device, 1);
}

TEST(Migrator, a_failed_call_is_counted_gives_its_extent_up_and_leaves_the_next_alone) {
  FakeDriver driver;
  const DriverApi api = driver.api();
  AllocationTable table;
  const policy::ExtentId first = add(table, kBase, 48);
  const policy::ExtentId second = add(table, kBase + 48 * kBlockBytes, 1);
  Migrator migrator(api, table);
  driver.fail_call(2);
  migrator.execute(Actions{{ActionKind::Demote, first}, {ActionKind::Demote, second}}, kStream);
  EXPECT_EQ(migrator.totals().failed_calls, 1u);
  EXPECT_EQ(migrator.totals().demoted_bytes, 17 * kBlockBytes);
  EXPECT_EQ(driver.prefetches.back().base, kBase + 48 * kBlockBytes);
  EXPECT_EQ(driver.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST(Migrator, a_freed_extent_is_left_out) {
  FakeDriver driver;
  const DriverApi api = driver.api();
  AllocationTable table;
  const policy::ExtentId extent = add(table, kBase, 1);
  ASSERT_TRUE(table.remove(kBase));
  Migrator migrator(api, table);
  migrator.execute(Actions{{ActionKind::Demote, extent}, {ActionKind::Prefetch, 12345}}, kStream);
  EXPECT_TRUE(driver.prefetches.empty());
  EXPECT_EQ(migrator.totals().failed_calls, 0u);
}

TEST(Migrator, nothing_is_called_while_the_stream_captures_or_may_capture) {
  FakeDriver driver;
  const DriverApi api = driver.api();
  AllocationTable table;
  const policy::ExtentId extent = add(table, kBase, 1);
  Migrator migrator(api, table);
  driver.capture_status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  migrator.execute(Actions{{ActionKind::Demote, extent}}, kStream);
  driver.capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  driver.capture_query = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  migrator.execute(Actions{{ActionKind::Demote, extent}}, kStream);
  EXPECT_TRUE(driver.prefetches.empty());
  EXPECT_EQ(migrator.totals().skipped_in_capture, 2u);
}

TEST(Migrator, without_actions_the_driver_is_not_asked_at_all) {
  const DriverApi nothing;  // any call would jump to null
  AllocationTable table;
  Migrator(nothing, table).execute({}, kStream);
}

}  // namespace
}  // namespace hmshim::uvm
