#include "interpose/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>

namespace hmshim::interpose {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;

// What `body` writes to stderr, in a process of its own: the log is started once in a process.
std::string logged_by(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 0) << text;
  return text;
}

TEST(Log, a_message_is_one_line_with_process_and_level) {
  const std::string text = logged_by([] {
    log_start(LogLevel::Warn);
    log(LogLevel::Warn, "the budget is odd");
  });
  EXPECT_THAT(text, MatchesRegex("hmshim\\[[0-9]+\\]: warning: the budget is odd\n"));
}

TEST(Log, nothing_is_written_before_the_start_or_below_the_level) {
  const std::string text = logged_by([] {
    log(LogLevel::Error, "too early");
    log_start(LogLevel::Warn);
    log(LogLevel::Info, "too small");
  });
  EXPECT_THAT(text, IsEmpty());
}

TEST(Log, a_text_of_a_disabled_level_is_never_made) {
  EXPECT_THAT(logged_by([] {
                log_start(LogLevel::Warn);
                bool was_made = false;
                const auto make = [&] {
                  was_made = true;
                  return std::string("made");
                };
                log(LogLevel::Debug, make);
                if (was_made) _exit(1);
                log(LogLevel::Error, make);
                if (!was_made) _exit(1);
              }),
              HasSubstr("error: made"));
}

TEST(Log, a_call_site_that_repeats_itself_is_cut_off_and_says_so) {
  const std::string text = logged_by([] {
    log_start(LogLevel::Warn);
    for (int i = 0; i < 100; ++i) log(LogLevel::Warn, "again");
    log(LogLevel::Warn, "another site");
  });
  EXPECT_EQ(std::ranges::count(text, '\n'), 6);
  EXPECT_THAT(text, HasSubstr("again (more of this kind will not be shown)\n"));
  EXPECT_THAT(text, HasSubstr("another site\n"));
}

TEST(Log, a_guest_that_closes_or_reuses_stderr_is_not_written_into) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string text = logged_by([&] {
    log_start(LogLevel::Warn);
    dup2(ends[1], STDERR_FILENO);
    log(LogLevel::Warn, "still said");
  });
  close(ends[1]);
  char byte;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);
  close(ends[0]);
  EXPECT_THAT(text, HasSubstr("still said"));

  EXPECT_THAT(logged_by([] {
                close(STDERR_FILENO);
                log_start(LogLevel::Warn);
                log(LogLevel::Warn, "to nobody");
              }),
              IsEmpty());
}

TEST(Log, a_forked_child_is_silent) {
  const std::string text = logged_by([] {
    log_start(LogLevel::Warn);
    log_forget_after_fork();
    log(LogLevel::Error, "from the child");
  });
  EXPECT_THAT(text, Not(HasSubstr("child")));
}

}  // namespace
}  // namespace hmshim::interpose
