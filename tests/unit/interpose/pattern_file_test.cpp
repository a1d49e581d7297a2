#include "interpose/pattern_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "tests/support/guest_process.hpp"

namespace hmshim::interpose {
namespace {

// Two launches: the second uses up what the first has made, with a weight.
LearnedPattern pattern() {
  auto iteration = std::make_shared<policy::Iteration>();
  iteration->launches = {{0x0123456789abcdef, 0, 0}, {7, 2, 1}};
  iteration->operands = {0, 1, 1, policy::kUnplanned};
  iteration->extents = {{4 * policy::kBlockBytes, policy::kPersistent, 0, 5},
                        {policy::kBlockBytes, 0, 1, policy::kNoExtent}};
  return {3, iteration, {400'125, 1}};
}

TEST(PatternFile, what_is_written_is_read) {
  const std::vector<LearnedPattern> patterns = {pattern(), pattern()};
  const std::string text = write_patterns(patterns);
  const PatternFile file = read_patterns(text);
  ASSERT_EQ(file.refusal, "");
  ASSERT_EQ(file.patterns.size(), 2U);
  const policy::Iteration& iteration = *file.patterns[1].iteration;
  EXPECT_EQ(file.patterns[1].device, 3);
  EXPECT_EQ(file.patterns[1].durations_ns, pattern().durations_ns);
  EXPECT_EQ(iteration.operands, pattern().iteration->operands);
  EXPECT_EQ(iteration.launches[0].signature, 0x0123456789abcdefU);
  EXPECT_EQ(iteration.launches[1].stream, 1);
  EXPECT_EQ(iteration.extents[0].id, 5U);
  EXPECT_EQ(iteration.extents[1].born, 0U);
  EXPECT_EQ(write_patterns(file.patterns), text);
}

TEST(PatternFile, is_refused_with_the_line_and_what_is_wrong) {
  const std::string good = write_patterns(std::vector{pattern()});
  const auto refusal = [&](std::string_view before, std::string_view after) {
    std::string text = good;
    const std::size_t at = text.find(before);
    EXPECT_NE(at, std::string::npos) << before;
    text.replace(at, before.size(), after);
    return read_patterns(text).refusal;
  };
  EXPECT_EQ(refusal("\"schema\":1", "\"schema\":2"), "line 1: its schema is 2, newer than 1");
  EXPECT_EQ(refusal("hmshim profile", "something"), "line 1: \"what\" is not \"hmshim profile\"");
  EXPECT_EQ(refusal("\"patterns\":1", "\"patterns\":2"), "line 7: the text ends too early");
  EXPECT_EQ(refusal("\"patterns\":1", "\"patterns\":0"), "line 1: there is more after the last pattern");
  EXPECT_EQ(refusal("\"bytes\":2097152", "\"bytes\":2097153"), "line 4: \"bytes\" must be a multiple of 2097152");
  EXPECT_EQ(refusal("\"bytes\":2097152", "\"bytes\":4398046511104"),
            "line 4: \"bytes\" must be a number below 4398046511104");
  EXPECT_EQ(refusal("\"bytes\":2097152", "\"bytes\":4398044413952"),
            "line 4: all \"bytes\" together exceed 4398046511104");
  EXPECT_EQ(refusal("\"born\":0", "\"born\":2"), "line 4: \"born\" must be a number below 2");
  EXPECT_EQ(refusal("\"born\":0", "\"born\":1"), "line 6: extent 1 is not named where it is born");
  EXPECT_EQ(refusal("\"operand\":1", "\"operand\":0"), "line 6: extent 1 is not named where its \"operand\" says");
  EXPECT_EQ(refusal("[0,1]", "[0,2]"), "line 5: \"in\" must hold the ids of extents, or null");
  EXPECT_EQ(refusal("400.125", "-1"), "line 5: \"dur_us\" must be a time above zero");
  EXPECT_EQ(refusal("0123456789abcdef", "123"), "line 5: \"signature\" must be 16 hexadecimal digits");
  EXPECT_EQ(refusal("\"stream\":1", "\"stream\":8"), "line 6: \"stream\" must be a number below 8");
}

TEST(PatternFile, cut_off_anywhere_it_is_refused) {
  const std::string good = write_patterns(std::vector{pattern()});
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    const PatternFile file = read_patterns(good.substr(0, bytes));
    EXPECT_NE(file.refusal, "") << bytes;
    EXPECT_TRUE(file.patterns.empty());
  }
}

TEST(PatternFile, with_bytes_changed_it_is_refused_or_means_something) {
  const std::string good = write_patterns(std::vector{pattern()});
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    std::string text = good;
    for (int change = 0; change <= i % 3; ++change) text[random() % text.size()] = static_cast<char>(random());
    const PatternFile file = read_patterns(text);
    if (!file.refusal.empty()) continue;
    EXPECT_EQ(read_patterns(write_patterns(file.patterns)).refusal, "");
  }
}

TEST(PatternFile, only_what_is_a_profile_of_a_known_schema_may_be_replaced) {
  const std::string good = write_patterns(std::vector{pattern()});
  EXPECT_TRUE(read_patterns(good.substr(0, good.size() / 2)).is_ours);
  EXPECT_FALSE(read_patterns("{\"t\":\"h\",\"schema\":2,\"what\":\"hmshim profile\",\"patterns\":0}\n").is_ours);
  EXPECT_FALSE(read_patterns("my thesis\n").is_ours);
}

TEST(PatternFile, a_link_stays_one_and_what_it_leads_to_is_replaced) {
  const support::TempDir folder;
  support::write_file(folder.file("profile"), "old");
  std::filesystem::create_symlink("profile", folder.file("link"));
  EXPECT_EQ(save_patterns(folder.file("link"), std::vector{pattern()}), "");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  EXPECT_EQ(support::read_file(folder.file("profile")), write_patterns(std::vector{pattern()}));
}

TEST(PatternFile, a_file_that_is_missing_or_empty_has_no_patterns_and_may_be_written) {
  const support::TempDir folder;
  support::write_file(folder.file("empty"), "");
  for (const std::string& path : {folder.file("missing"), folder.file("empty")}) {
    const PatternFile file = load_patterns(path);
    EXPECT_EQ(file.refusal, "");
    EXPECT_TRUE(file.patterns.empty());
    EXPECT_TRUE(file.is_ours);
  }
}

TEST(PatternFile, what_is_no_file_is_refused_without_waiting_for_it) {
  const support::TempDir folder;
  ASSERT_EQ(mkfifo(folder.file("fifo").c_str(), 0600), 0);
  for (const std::string& path : {folder.file("fifo"), std::string("/dev/zero"), folder.file("")}) {
    EXPECT_NE(load_patterns(path).refusal, "") << path;
    EXPECT_FALSE(load_patterns(path).is_ours) << path;
  }
}

TEST(PatternFile, is_written_whole_or_not_at_all) {
  const support::TempDir folder;
  const std::string path = folder.file("profile");
  EXPECT_EQ(save_patterns(path, std::vector{pattern()}), "");
  EXPECT_EQ(save_patterns(path, std::vector{pattern(), pattern()}), "");
  EXPECT_EQ(load_patterns(path).patterns.size(), 2U);
  EXPECT_NE(save_patterns("/proc/profile", std::vector{pattern()}), "");
  EXPECT_NE(save_patterns(folder.file("no/such/folder"), std::vector{pattern()}), "");
  std::filesystem::create_directory(folder.file("folder"));
  EXPECT_NE(save_patterns(folder.file("folder"), std::vector{pattern()}), "");
  for (const auto& entry : std::filesystem::directory_iterator(folder.file("")))
    EXPECT_TRUE(entry.path().filename() == "profile" || entry.path().filename() == "folder") << entry.path();
  EXPECT_EQ(support::read_file(path), write_patterns(std::vector{pattern(), pattern()}));
}

}  // namespace
}  // namespace hmshim::interpose
