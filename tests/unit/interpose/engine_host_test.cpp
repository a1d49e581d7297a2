#include "interpose/engine_host.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "interpose/gate.hpp"
#include "tests/support/guest_process.hpp"

namespace hmshim::interpose {
namespace {

using policy::ExtentId;
using policy::kBlockBytes;

struct Moved {
  CUdeviceptr base;
  CUmemLocationType target;
  CUstream stream;
  bool operator==(const Moved&) const = default;
};
std::vector<Moved> moved;
std::uint64_t clock_ns = 0;

CUresult record_prefetch(CUdeviceptr base, std::size_t, CUmemLocation target, unsigned, CUstream stream) {
  moved.push_back({base, target.type, stream});
  return CUDA_SUCCESS;
}
CUresult not_capturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult exchange(CUstreamCaptureMode*) { return CUDA_SUCCESS; }
std::uint64_t tick_clock() { return clock_ns += 1000; }

uvm::DriverApi recording_driver() {
  uvm::DriverApi driver;
  driver.cuMemPrefetchAsync_v2 = record_prefetch;
  driver.cuStreamIsCapturing = not_capturing;
  driver.cuThreadExchangeStreamCaptureMode = exchange;
  driver.simgpu_now_ns = tick_clock;
  return driver;
}

constexpr std::uint64_t kBase = 0x7f00'0000'0000;
const auto kStream = reinterpret_cast<CUstream>(std::uintptr_t{0x5});

class EngineHosting : public testing::Test {
 protected:
  EngineHosting() {
    moved.clear();
    gate().activate();
  }

  ExtentId allocate(std::uint64_t at_block, std::uint64_t blocks, std::uint16_t device = 0) {
    uvm::Allocation allocation{.base = kBase + at_block * kBlockBytes, .bytes = blocks * kBlockBytes, .device = device};
    EXPECT_TRUE(table.insert(allocation));
    host.allocated(allocation);
    return allocation.extent;
  }
  void launch(std::vector<ExtentId> extents, std::uint64_t signature = 1) { host.launch(signature, extents, kStream); }

  support::TempDir folder;
  const uvm::DriverApi driver = recording_driver();
  uvm::AllocationTable table;
  uvm::Migrator migrator{driver, table};
  Report report{folder.file("report"), false, 1};
  EngineHost host{driver, migrator, report, "on_demand", std::vector<std::uint64_t>{4 * kBlockBytes, 4 * kBlockBytes}};
};

TEST_F(EngineHosting, demotes_the_least_recently_touched_in_the_launching_stream_before_the_launch) {
  const ExtentId a = allocate(0, 2), b = allocate(2, 2), c = allocate(4, 2);
  launch({a});
  launch({b});
  launch({a});  // queued only: both are resident
  EXPECT_TRUE(moved.empty());
  launch({c});
  EXPECT_EQ(moved, (std::vector<Moved>{{kBase + 2 * kBlockBytes, CU_MEM_LOCATION_TYPE_HOST, kStream}}));
}

TEST_F(EngineHosting, a_copy_brings_its_extents_in_first_and_a_resident_one_needs_no_driver_call) {
  const ExtentId a = allocate(0, 1);
  host.copy(std::vector{a}, kStream);
  EXPECT_EQ(moved, (std::vector<Moved>{{kBase, CU_MEM_LOCATION_TYPE_DEVICE, kStream}}));
  moved.clear();
  for (int i = 0; i < 100; ++i) host.copy(std::vector{a}, kStream);
  EXPECT_TRUE(moved.empty());
}

TEST_F(EngineHosting, a_freed_extent_makes_room_and_its_id_begins_anew) {
  const ExtentId a = allocate(0, 4);
  launch({a});
  const auto freed = table.remove(kBase);
  ASSERT_TRUE(freed);
  host.freed(*freed);
  table.release_extent(a);
  const ExtentId b = allocate(8, 4);
  ASSERT_EQ(b, a);
  launch({b});
  EXPECT_TRUE(moved.empty()) << "nothing else is on the device";
}

TEST_F(EngineHosting, each_device_has_a_budget_of_its_own) {
  const ExtentId a = allocate(0, 3, 0), b = allocate(3, 3, 1), c = allocate(6, 3, 1);
  launch({a});
  launch({b});
  EXPECT_TRUE(moved.empty());
  launch({a, c});
  EXPECT_EQ(moved, (std::vector<Moved>{{kBase + 3 * kBlockBytes, CU_MEM_LOCATION_TYPE_HOST, kStream}}));
}

TEST_F(EngineHosting, the_report_has_a_row_for_each_iteration_and_the_totals_count_all) {
  const ExtentId a = allocate(0, 2), b = allocate(2, 2), c = allocate(4, 2);
  constexpr std::uint64_t kIterations = 20;
  for (std::uint64_t iteration = 0; iteration < kIterations; ++iteration) {
    for (std::uint64_t layer = 0; layer < 10; ++layer) launch({layer % 3 == 0 ? a : layer % 3 == 1 ? b : c}, layer);
    host.settle();
  }
  host.end();
  const auto totals = host.totals();
  ASSERT_EQ(totals.size(), 1u);
  EXPECT_EQ(totals[0].counters.launches, kIterations * 10);
  EXPECT_GT(totals[0].counters.d2h_demote_bytes, 0u);
  report.finish({});

  std::uint64_t rows = 0, launches = 0, demoted_bytes = 0, timed = 0;
  for (const auto& line : support::read_json_lines(folder.file("report"))) {
    if (line["kind"] != "iteration") continue;
    ++rows;
    launches += line["launches"].get<std::uint64_t>();
    demoted_bytes += line["d2h_demote_bytes"].get<std::uint64_t>();
    timed += line["time_ns"].get<std::uint64_t>() > 0;
  }
  EXPECT_GE(rows, kIterations - 3) << "iterations are found within two of them";
  EXPECT_EQ(launches, totals[0].counters.launches) << "the rows tile the launches";
  EXPECT_EQ(demoted_bytes, totals[0].counters.d2h_demote_bytes);
  EXPECT_GE(timed, rows - 1);
}

}  // namespace
}  // namespace hmshim::interpose
