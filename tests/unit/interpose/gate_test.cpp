#include "interpose/gate.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace hmshim::interpose {
namespace {

TEST(Gate, starts_armed_and_runs_no_handlers) {
  const Gate gate;
  EXPECT_EQ(gate.state(), GateState::Armed);
  EXPECT_EQ(gate.reason(), Reason::none);
  EXPECT_FALSE(gate.runs_handlers());
}

TEST(Gate, is_active_only_after_activate) {
  Gate gate;
  EXPECT_TRUE(gate.activate());
  EXPECT_TRUE(gate.is_active());
  EXPECT_TRUE(gate.runs_handlers());
  EXPECT_FALSE(gate.activate()) << "a second cuInit changes nothing";
}

TEST(Gate, handlers_go_on_after_a_fault_but_nothing_is_active) {
  Gate gate;
  gate.activate();
  EXPECT_TRUE(gate.pass_through(Reason::internal_error));
  EXPECT_TRUE(gate.runs_handlers());
  EXPECT_FALSE(gate.is_active());
  EXPECT_EQ(gate.state(), GateState::PassThrough);
  EXPECT_EQ(gate.reason(), Reason::internal_error);
}

TEST(Gate, handlers_do_not_run_where_nothing_was_ever_owned) {
  Gate gate;
  EXPECT_TRUE(gate.pass_through(Reason::unsupported_device));
  EXPECT_FALSE(gate.runs_handlers());
  EXPECT_FALSE(gate.activate()) << "passing through is for the rest of the process";
  EXPECT_EQ(gate.state(), GateState::PassThrough);
}

TEST(Gate, keeps_the_first_reason) {
  Gate gate;
  gate.activate();
  EXPECT_TRUE(gate.pass_through(Reason::internal_error));
  EXPECT_FALSE(gate.pass_through(Reason::unsupported_device));
  EXPECT_EQ(gate.reason(), Reason::internal_error);
}

TEST(Gate, off_is_final_from_every_state) {
  for (int start = 0; start < 3; ++start) {
    Gate gate;
    if (start >= 1) gate.activate();
    if (start == 2) gate.pass_through(Reason::internal_error);
    gate.turn_off(Reason::forked_child);
    EXPECT_EQ(gate.state(), GateState::Off);
    EXPECT_EQ(gate.reason(), Reason::forked_child);
    EXPECT_FALSE(gate.runs_handlers());
    EXPECT_FALSE(gate.activate());
    EXPECT_FALSE(gate.pass_through(Reason::internal_error));
    EXPECT_EQ(gate.reason(), Reason::forked_child);
  }
}

TEST(Gate, one_of_many_threads_gives_the_reason) {
  Gate gate;
  gate.activate();
  std::atomic<int> winners{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] { winners += gate.pass_through(Reason::internal_error); });
    }
  }
  EXPECT_EQ(winners, 1);
}

TEST(Gate, every_state_and_reason_has_a_name_of_its_own) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Reason::internal_error); ++i) names.insert(to_string(static_cast<Reason>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Reason::internal_error) + 1);
  EXPECT_FALSE(names.contains("unknown"));
  for (int i = 0; i <= static_cast<int>(GateState::Off); ++i)
    EXPECT_NE(to_string(static_cast<GateState>(i)), "unknown");
}

}  // namespace
}  // namespace hmshim::interpose
