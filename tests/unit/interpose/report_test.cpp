#include "interpose/report.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "interpose/config.hpp"
#include "tests/support/guest_process.hpp"

namespace hmshim::interpose {
namespace {

using nlohmann::json;
using support::read_file;
using support::read_json_lines;
using support::TempDir;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr pid_t kPid = 4711;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

IterationRecord iteration(std::uint64_t ordinal) {
  IterationRecord record;
  record.counters.iteration = ordinal;
  record.counters.time_ns = 1'500'000;
  record.counters.confidence = 0.5;
  record.counters.footprint_bytes = 3 * kGiB;
  return record;
}

ExitRecord exit_record() {
  ExitRecord record;
  record.policy = "on_demand";
  record.gate = GateState::PassThrough;
  record.gate_reason = Reason::internal_error;
  record.devices = {iteration(2)};
  record.managed = {3, 4096, 2048};
  record.device = {1, 512, 512};
  record.hooks = {{"cuMemAlloc_v2", 4}, {"cuMemFree_v2", 0}};
  record.bypasses = {{"below the threshold", 7, 700}};
  return record;
}

// Runs `body` in a forked child and says how the child ended: what changes a whole process stays there.
int status_of_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(Report, a_process_writes_start_iterations_and_exit_in_order) {
  const TempDir folder;
  const std::string path = folder.file("r.jsonl");
  Report report(path, false, kPid);
  report.start({.policy = "on_demand",
                .device_total_bytes = 40 * kGiB,
                .budget_bytes = 36 * kGiB,
                .managed_limit_bytes = kNoLimit,
                .can_migrate = true,
                .capabilities = "faults are \"concurrent\"\n"});
  report.push(iteration(0));
  report.push(iteration(1));
  report.finish(exit_record());

  const std::vector<json> lines = read_json_lines(path);
  ASSERT_EQ(lines.size(), 4U);
  for (const json& line : lines) {
    EXPECT_EQ(line.at("schema"), 1);
    EXPECT_EQ(line.at("pid"), kPid);
  }
  EXPECT_EQ(lines[0].at("kind"), "start");
  EXPECT_EQ(lines[0].at("version"), HMSHIM_VERSION);
  EXPECT_EQ(lines[0].at("budget_bytes"), 36 * kGiB);
  EXPECT_TRUE(lines[0].at("managed_limit_bytes").is_null());
  EXPECT_EQ(lines[0].at("capabilities"), "faults are \"concurrent\"\n");
  EXPECT_EQ(lines[1].at("kind"), "iteration");
  EXPECT_EQ(lines[1].at("iteration"), 0);
  EXPECT_EQ(lines[2].at("iteration"), 1);
  EXPECT_EQ(lines[2].at("confidence"), 0.5);
  EXPECT_EQ(lines[2].at("footprint_bytes"), 3 * kGiB);
  EXPECT_EQ(lines[3].at("kind"), "exit");
  EXPECT_EQ(lines[3].at("gate_reason"), to_string(Reason::internal_error));
  EXPECT_EQ(lines[3].at("devices").at(0).at("iteration"), 2);
  EXPECT_EQ(lines[3].at("allocations").at("managed").at("peak_bytes"), 2048);
  EXPECT_EQ(lines[3].at("hooks"), (json{{"cuMemAlloc_v2", 4}}));
  EXPECT_EQ(lines[3].at("bypasses").at(0).at("reason"), "below the threshold");
  EXPECT_EQ(lines[3].at("records_dropped"), 0);
}

TEST(Report, an_iteration_has_every_counter_of_the_table) {
  const TempDir folder;
  Report report(folder.file("r"), false, kPid);
  report.push(iteration(0));
  report.flush();
  const json line = read_json_lines(folder.file("r")).at(0);
  std::size_t counters = 0;
#define COUNTER(name, unit_name, heading, sentence) \
  EXPECT_TRUE(line.contains(#name)) << #name;       \
  ++counters;
#include "interpose/counters.def"
#undef COUNTER
  EXPECT_EQ(line.size(), counters + 4);  // schema, kind, pid, device
}

TEST(Report, nothing_is_created_when_nothing_is_written) {
  const TempDir folder;
  {
    Report report(folder.file("r"), false, kPid);
    report.flush();
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("r")));
}

TEST(Report, what_is_in_the_file_already_stays) {
  const TempDir folder;
  support::write_file(folder.file("r"), "{\"kind\":\"other\"}\n");
  Report report(folder.file("r"), false, kPid);
  report.finish(exit_record());
  const std::vector<json> lines = read_json_lines(folder.file("r"));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("kind"), "other");
}

TEST(Report, a_full_ring_drops_and_counts_and_goes_on) {
  const TempDir folder;
  Report report(folder.file("r"), false, kPid);
  for (std::uint64_t ordinal = 0; ordinal < 1000; ++ordinal) report.push(iteration(ordinal));
  report.flush();
  report.push(iteration(1000));
  report.finish(exit_record());
  const std::vector<json> lines = read_json_lines(folder.file("r"));
  const std::uint64_t dropped = lines.back().at("records_dropped");
  EXPECT_GT(dropped, 0U);
  EXPECT_EQ(lines.size() - 1 + dropped, 1001U);
  EXPECT_EQ(lines[0].at("iteration"), 0);
  EXPECT_EQ(lines[lines.size() - 2].at("iteration"), 1000);
}

TEST(Report, every_record_of_many_threads_is_written_once_or_counted) {
  const TempDir folder;
  Report report(folder.file("r"), false, kPid);
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kEach = 3000;
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&report, thread] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        report.push(iteration(thread * kEach + i));
        if (i % 64 == 0) report.flush();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  report.finish(exit_record());
  const std::vector<json> lines = read_json_lines(folder.file("r"));
  std::set<std::uint64_t> seen;
  for (std::size_t line = 0; line + 1 < lines.size(); ++line)
    seen.insert(lines[line].at("iteration").get<std::uint64_t>());
  EXPECT_EQ(seen.size(), lines.size() - 1);
  EXPECT_EQ(seen.size() + lines.back().at("records_dropped").get<std::uint64_t>(), kThreads * kEach);
}

TEST(Report, after_finish_nothing_more_is_written) {
  const TempDir folder;
  Report report(folder.file("r"), false, kPid);
  report.finish(exit_record());
  const std::string before = read_file(folder.file("r"));
  report.push(iteration(9));
  report.flush();
  report.start({});
  report.finish(exit_record());
  EXPECT_EQ(read_file(folder.file("r")), before);
}

TEST(Report, a_forked_child_writes_nothing_and_leaves_the_parents_file_alone) {
  const TempDir folder;
  Report report(folder.file("r"), false, kPid);
  report.push(iteration(0));
  report.flush();
  report.push(iteration(1));
  EXPECT_EQ(status_of_child([&] {
              report.forget_after_fork();
              report.push(iteration(666));
              report.flush();
              report.finish(exit_record());
            }),
            0);
  report.finish(exit_record());
  const std::vector<json> lines = read_json_lines(folder.file("r"));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1].at("iteration"), 1);
}

TEST(Report, a_full_disk_or_a_lost_file_costs_records_only) {
  Report full("/dev/full", false, kPid);
  full.start({});
  full.push(iteration(0));
  full.finish(exit_record());

  Report nowhere("/nonexistent/folder/r", false, kPid);
  nowhere.start({});
  nowhere.finish(exit_record());
}

TEST(Report, a_report_that_may_grow_no_further_raises_no_signal) {
  const TempDir folder;
  EXPECT_EQ(status_of_child([&] {
              const rlimit limit{1000, 1000};
              setrlimit(RLIMIT_FSIZE, &limit);  // beyond it: SIGXFSZ, which kills by default
              Report report(folder.file("r"), false, kPid);
              for (std::uint64_t ordinal = 0; ordinal < 100; ++ordinal) report.push(iteration(ordinal));
              report.flush();
              report.finish(exit_record());
            }),
            0);
  EXPECT_EQ(std::filesystem::file_size(folder.file("r")), 1000U);
}

TEST(Report, a_reader_that_goes_away_raises_no_signal) {
  const TempDir folder;
  const std::string fifo = folder.file("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(status_of_child([&] {
              const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
              Report report(fifo, false, kPid);
              report.start({});
              close(reader);
              report.push(iteration(0));
              report.flush();
              report.finish(exit_record());
              sigset_t pending;
              sigpending(&pending);
              if (sigismember(&pending, SIGPIPE) == 1) _exit(1);
            }),
            0);
}

TEST(Report, a_descriptor_that_the_guest_took_over_is_not_written_to) {
  const TempDir folder;
  EXPECT_EQ(status_of_child([&] {
              Report report(folder.file("r"), false, kPid);
              report.start({});
              // As a daemon does: everything closed, and the numbers given to files of its own.
              closefrom(3);
              const int own = open(folder.file("guest").c_str(), O_WRONLY | O_CREAT, 0600);
              for (int descriptor = 4; descriptor < 400; ++descriptor) dup2(own, descriptor);
              report.push(iteration(0));
              report.finish(exit_record());
              if (fcntl(399, F_GETFD) < 0 || fcntl(300, F_GETFD) < 0) _exit(1);
            }),
            0);
  EXPECT_EQ(read_file(folder.file("guest")), "");
  EXPECT_EQ(read_json_lines(folder.file("r")).size(), 1U);
}

TEST(Report, the_summary_goes_to_stderr_with_the_first_and_last_iterations_and_totals) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(status_of_child([] {
              log_start(LogLevel::Off);
              Report report("", true, kPid);
              for (std::uint64_t ordinal = 100; ordinal < 200; ++ordinal) report.push(iteration(ordinal));
              report.finish(exit_record());
            }),
            0);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("hmshim[4711]: policy on_demand, " + std::string(to_string(GateState::PassThrough)) +
                              ": " + std::string(to_string(Reason::internal_error))));
  EXPECT_THAT(text, HasSubstr("working set"));
  EXPECT_THAT(text, HasSubstr("3.0 GiB"));
  EXPECT_THAT(text, HasSubstr("1.50 ms"));
  EXPECT_THAT(text, HasSubstr(" 100 "));
  EXPECT_THAT(text, HasSubstr(" 107 "));
  EXPECT_THAT(text, Not(HasSubstr(" 108 ")));
  EXPECT_THAT(text, HasSubstr("(84 more)"));
  EXPECT_THAT(text, HasSubstr(" 199 "));
  EXPECT_THAT(text, HasSubstr("0 in all"));
  EXPECT_THAT(text, HasSubstr("passed through: 7 x below the threshold (700 B)"));
}

}  // namespace
}  // namespace hmshim::interpose
