// The recorder against a driver whose events end when the test says so.
#include "interpose/trace_recorder.hpp"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "interpose/captures.hpp"
#include "interpose/kernel_args.hpp"
#include "tests/support/guest_process.hpp"

namespace hmshim::interpose {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr policy::ExtentId kFirst = 5, kSecond = 9;
const std::array kBoth{kFirst, kSecond};

// Every event is recorded 10 us after the one before.
class Events {
 public:
  Events() { current_ = this; }
  ~Events() { current_ = nullptr; }

  uvm::DriverApi api() {
    uvm::DriverApi api;
    api.cuEventCreate = [](CUevent* event, unsigned) {
      current_->recorded_us_.push_back(0);
      *event = reinterpret_cast<CUevent>(current_->recorded_us_.size());
      return CUDA_SUCCESS;
    };
    api.cuEventDestroy_v2 = [](CUevent) { return ++current_->destroyed, CUDA_SUCCESS; };
    api.cuEventRecord = [](CUevent event, CUstream) {
      current_->recorded_us_[index(event)] = current_->now_us_ += 10;
      return CUDA_SUCCESS;
    };
    api.cuEventQuery = [](CUevent) { return current_->have_ended ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; };
    api.cuEventElapsedTime = [](float* milliseconds, CUevent begin, CUevent end) {
      const float us = current_->recorded_us_[index(end)] - current_->recorded_us_[index(begin)];
      return *milliseconds = us / 1e3F, CUDA_SUCCESS;
    };
    api.cuFuncGetName = [](const char** name, CUfunction) { return *name = "say \"gemm\"", CUDA_SUCCESS; };
    return api;
  }

  bool have_ended = true;
  std::size_t destroyed = 0;
  [[nodiscard]] std::size_t made() const { return recorded_us_.size(); }

 private:
  static std::size_t index(CUevent event) { return reinterpret_cast<std::uintptr_t>(event) - 1; }
  static inline Events* current_ = nullptr;
  std::vector<float> recorded_us_;
  float now_us_ = 0;
};

class TraceRecorderTest : public ::testing::Test {
 protected:
  TraceRecorderTest() {
    kernels.learn(kKernel, HandleKind::Function, &kernels);
    recorder.allocated(0x1000, 4 * kMiB, kFirst);
    recorder.allocated(0x2000, 8 * kMiB, kSecond);
  }
  void launch(std::uint64_t signature = 1, const void* kernel = kKernel) {
    const auto running = recorder.launch(kernel, kernels, signature, kBoth, nullptr);
  }
  std::vector<json> lines(const std::string& type) {
    std::vector<json> found;
    for (const json& line : support::read_json_lines(path)) {
      if (line.at("t") == type) found.push_back(line);
    }
    return found;
  }

  static inline const void* const kKernel = reinterpret_cast<const void*>(0x77);
  support::TempDir folder;
  const std::string path = folder.file("trace.jsonl");
  Events events;
  const uvm::DriverApi driver = events.api();
  Captures captures;
  KernelLayouts kernels;
  TraceRecorder recorder{driver, captures, path, "prog"};
};

TEST_F(TraceRecorderTest, writes_lives_calls_and_waits_in_order) {
  launch();
  recorder.freed(0x1000);
  recorder.waited();
  recorder.finish();
  const std::vector<json> all = support::read_json_lines(path);
  ASSERT_EQ(all.size(), 7U);
  EXPECT_EQ(all[0].at("schema"), 2);
  EXPECT_EQ(all[0].at("workload"), "prog");
  EXPECT_EQ(all[1], json::parse(R"({"t":"T","id":0,"bytes":4194304})"));
  EXPECT_EQ(all[2], json::parse(R"({"t":"T","id":1,"bytes":8388608})"));
  EXPECT_EQ(all[3], json::parse(R"({"t":"K","id":0,"name":"say \"gemm\"","in":[0,1],"out":[0,1],"workspace":null,
                                    "dur_us":10.0,"stream":0})"));
  EXPECT_EQ(all[4], json::parse(R"({"t":"F","id":0})"));
  EXPECT_EQ(all[5], json::parse(R"({"t":"S"})"));
  EXPECT_EQ(all[6], json::parse(R"({"t":"E","calls":1,"estimated":0})"));
}

TEST_F(TraceRecorderTest, an_address_that_comes_back_is_another_tensor_and_the_dead_are_not_named) {
  recorder.freed(0x1000);
  launch();
  recorder.allocated(0x1000, kMiB, kFirst);
  launch();
  recorder.finish();
  const std::vector<json> calls = lines("K");
  EXPECT_EQ(calls.at(0).at("in"), json({1}));
  EXPECT_EQ(calls.at(1).at("in"), json({2, 1}));
}

TEST_F(TraceRecorderTest, a_call_is_written_once_it_has_ended) {
  events.have_ended = false;
  launch();
  recorder.freed(0x1000);
  recorder.waited();
  EXPECT_TRUE(lines("K").empty());
  EXPECT_TRUE(lines("F").empty()) << "what comes later waits";
  events.have_ended = true;
  recorder.waited();
  EXPECT_EQ(lines("K").size(), 1U);
  EXPECT_EQ(lines("F").size(), 1U);
}

TEST_F(TraceRecorderTest, nothing_is_asked_of_events_while_a_stream_is_captured) {
  launch();
  captures.began(nullptr);
  recorder.waited();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(TraceRecorderTest, calls_beyond_the_events_take_the_mean_of_their_like) {
  launch(1);
  recorder.waited();
  events.have_ended = false;
  for (int call = 0; call < 1100; ++call) launch(1);
  launch(2);
  recorder.finish();
  const std::vector<json> calls = lines("K");
  ASSERT_EQ(calls.size(), 1102U);
  EXPECT_FALSE(calls.front().contains("estimated"));
  EXPECT_EQ(calls[1100].at("estimated"), true);
  EXPECT_EQ(calls[1100].at("dur_us"), 10.0);
  EXPECT_EQ(calls.back().at("dur_us"), 0.0) << "nothing like it has been measured";
  EXPECT_EQ(lines("E").at(0).at("estimated"), 1101);
  EXPECT_EQ(events.made(), 2048U);
}

TEST_F(TraceRecorderTest, a_program_that_never_waits_is_written_when_the_memory_for_it_is_used_up) {
  for (int call = 0; call < 20'000; ++call) launch();
  EXPECT_GT(lines("K").size(), 15'000U);
  recorder.finish();
  EXPECT_EQ(lines("K").size(), 20'000U);
  EXPECT_EQ(lines("E").at(0).at("estimated"), 0) << "events are used again";
}

TEST_F(TraceRecorderTest, events_go_with_their_context) {
  launch();
  recorder.leave_context();
  EXPECT_EQ(events.destroyed, 2U);
  launch();
  recorder.finish();
  EXPECT_EQ(events.made(), 4U);
  EXPECT_EQ(lines("K").size(), 2U);
}

TEST_F(TraceRecorderTest, kernels_without_a_name_get_numbers) {
  launch(1, &folder);
  launch(1, &events);
  launch(1, nullptr);
  recorder.finish();
  const std::vector<json> calls = lines("K");
  EXPECT_EQ(calls.at(0).at("name"), "kernel 0");
  EXPECT_EQ(calls.at(1).at("name"), "kernel 1");
  EXPECT_EQ(calls.at(2).at("name"), "graph");
}

TEST_F(TraceRecorderTest, without_a_path_it_does_nothing) {
  TraceRecorder off{driver, captures, "", "prog"};
  off.allocated(0x1000, kMiB, kFirst);
  EXPECT_FALSE(off.launch(kKernel, kernels, 1, kBoth, nullptr).is_measured());
  off.waited();
  off.finish();
  EXPECT_EQ(events.made(), 0U);
}

}  // namespace
}  // namespace hmshim::interpose
