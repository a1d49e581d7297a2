#include "interpose/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/size_cases.hpp"

namespace hmshim::interpose {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Config parsed(const std::vector<std::string>& entries) {
  std::vector<const char*> environment;
  for (const std::string& entry : entries) environment.push_back(entry.c_str());
  environment.push_back(nullptr);
  return parse(environment.data());
}

std::string rank_in(const std::vector<std::string>& entries) {
  std::vector<const char*> environment;
  for (const std::string& entry : entries) environment.push_back(entry.c_str());
  environment.push_back(nullptr);
  return rank_of(environment.data());
}

TEST(Config, an_empty_environment_gives_the_defaults_without_a_word) {
  for (const Config& config : {parse(nullptr), parsed({}), parsed({"PATH=/bin", "NOT_HMSHIM_LOG=x", "bare"})}) {
    EXPECT_FALSE(config.disable);
    EXPECT_EQ(config.policy, "on_demand");
    EXPECT_EQ(config.device_budget, (Amount{kNoLimit, false}));
    EXPECT_EQ(config.managed_limit, (Amount{kNoLimit, false}));
    EXPECT_EQ(config.host_limit, kNoLimit);
    EXPECT_EQ(config.meminfo, MemInfo::Virtual);
    EXPECT_EQ(config.device_threshold, std::uint64_t{1} << 20);
    EXPECT_EQ(config.report, "");
    EXPECT_FALSE(config.summary);
    EXPECT_EQ(config.log_level, LogLevel::Warn);
    EXPECT_THAT(config.errors, IsEmpty());
    EXPECT_THAT(config.warnings, IsEmpty());
  }
}

TEST(Config, every_default_is_a_value_that_a_user_could_give) {
#define OPTION(field, name, type, default_value, values, sentence) \
  EXPECT_THAT(parsed({std::string(name) + "=" + (default_value)}).errors, IsEmpty()) << name;
#include "interpose/options.def"
#undef OPTION
}

TEST(Config, sizes_mean_what_the_shared_cases_say) {
  const std::vector<support::SizeCase> cases = support::size_cases();
  ASSERT_GT(cases.size(), 50U);
  for (const auto& [text, meaning] : cases) {
    const Config config = parsed({"HMSHIM_MANAGED_LIMIT=" + text});
    SCOPED_TRACE("'" + text + "' means " + meaning);
    if (meaning == "junk") {
      EXPECT_EQ(config.errors.size(), 1U);
      EXPECT_EQ(config.managed_limit, (Amount{kNoLimit, false}));
      continue;
    }
    EXPECT_THAT(config.errors, IsEmpty());
    if (meaning == "none") {
      EXPECT_EQ(config.managed_limit, (Amount{kNoLimit, false}));
    } else {
      EXPECT_EQ(config.managed_limit, (Amount{std::stoull(meaning), meaning.back() == '%'}));
    }
  }
}

TEST(Config, an_amount_is_a_share_of_the_whole_without_overflow) {
  EXPECT_EQ((Amount{60, true}.of(1000)), 600U);
  EXPECT_EQ((Amount{60, true}.of(199)), 119U);
  EXPECT_EQ((Amount{100, true}.of(kNoLimit)), kNoLimit);
  EXPECT_EQ((Amount{0, true}.of(1000)), 0U);
  EXPECT_EQ((Amount{4096, false}.of(1000)), 4096U);
}

TEST(Config, none_and_percent_are_refused_where_they_have_no_meaning) {
  EXPECT_THAT(parsed({"HMSHIM_DEVICE_THRESHOLD=none"}).errors, ElementsAre(Not(HasSubstr("or none"))));
  EXPECT_THAT(parsed({"HMSHIM_HOST_LIMIT=50%"}).errors, ElementsAre(Not(HasSubstr("60%"))));
}

TEST(Config, switches_take_the_usual_words_and_zero_is_off) {
  for (const char* on : {"1", "on", "true", "yes"})
    EXPECT_TRUE(parsed({std::string("HMSHIM_SUMMARY=") + on}).summary) << on;
  for (const char* off : {"0", "off", "false", "no"}) {
    const Config config = parsed({std::string("HMSHIM_SUMMARY=") + off});
    EXPECT_FALSE(config.summary) << off;
    EXPECT_THAT(config.errors, IsEmpty()) << off;
  }
  for (const char* junk : {"2", "ON", "enable", "yes ", "-1"}) {
    EXPECT_THAT(parsed({std::string("HMSHIM_SUMMARY=") + junk}).errors.size(), 1) << junk;
  }
}

TEST(Config, an_empty_value_is_as_good_as_none_at_all) {
  const Config config = parsed({"HMSHIM_SUMMARY=", "HMSHIM_DEVICE_BUDGET=", "HMSHIM_POLICY=", "HMSHIM_EXCLUDE="});
  EXPECT_THAT(config.errors, IsEmpty());
  EXPECT_EQ(config.policy, parsed({}).policy);
  EXPECT_EQ(config.device_budget, (Amount{kNoLimit, false}));
}

TEST(Config, the_commands_own_variable_is_no_unknown_option) {
  EXPECT_THAT(parsed({"HMSHIM_LIB=/opt/libhmshim.so"}).warnings, IsEmpty());
}

TEST(Config, words_choose_the_enumerator_of_the_same_name) {
  EXPECT_EQ(parsed({"HMSHIM_MEMINFO=device"}).meminfo, MemInfo::Device);
  EXPECT_EQ(parsed({"HMSHIM_MEMINFO=virtual"}).meminfo, MemInfo::Virtual);
  EXPECT_EQ(parsed({"HMSHIM_LOG=off"}).log_level, LogLevel::Off);
  EXPECT_EQ(parsed({"HMSHIM_LOG=error"}).log_level, LogLevel::Error);
  EXPECT_EQ(parsed({"HMSHIM_LOG=warn"}).log_level, LogLevel::Warn);
  EXPECT_EQ(parsed({"HMSHIM_LOG=info"}).log_level, LogLevel::Info);
  EXPECT_EQ(parsed({"HMSHIM_LOG=debug"}).log_level, LogLevel::Debug);
  EXPECT_EQ(parsed({"HMSHIM_POLICY=off"}).policy, "off");
}

TEST(Config, junk_gives_one_line_with_the_name_the_value_and_what_is_right) {
  const Config config =
      parsed({"HMSHIM_DEVICE_BUDGET=08G", "HMSHIM_POLICY=magic", "HMSHIM_LOG=loud", "HMSHIM_REPORT=a%x"});
  EXPECT_THAT(config.errors,
              ElementsAre(AllOf(HasSubstr("HMSHIM_POLICY=magic"), HasSubstr("on_demand or")),
                          AllOf(HasSubstr("HMSHIM_DEVICE_BUDGET=08G"), HasSubstr("8GiB"), HasSubstr("60%"),
                                HasSubstr("policy stays off")),
                          AllOf(HasSubstr("HMSHIM_REPORT=a%x"), HasSubstr("%p")),
                          AllOf(HasSubstr("HMSHIM_LOG=loud"), HasSubstr("off or error or warn or info or debug"))));
  EXPECT_EQ(config.policy, "on_demand");
  EXPECT_EQ(config.device_budget, (Amount{kNoLimit, false}));
  EXPECT_EQ(config.report, "");
}

TEST(Config, a_value_cannot_break_the_line_or_flood_it) {
  const Config config = parsed({"HMSHIM_LOG=a\nb\x1b[31m", "HMSHIM_POLICY=" + std::string(10000, 'x')});
  ASSERT_EQ(config.errors.size(), 2U);
  for (const std::string& error : config.errors) {
    EXPECT_EQ(error.find_first_of("\n\x1b"), std::string::npos);
    EXPECT_LT(error.size(), 300U);
  }
}

TEST(Config, an_unknown_name_is_answered_with_the_nearest_one) {
  EXPECT_THAT(parsed({"HMSHIM_DEVICE_BUDGT=8G"}).warnings,
              ElementsAre(AllOf(HasSubstr("HMSHIM_DEVICE_BUDGT "), HasSubstr("did you mean HMSHIM_DEVICE_BUDGET?"))));
  EXPECT_THAT(parsed({"HMSHIM_REPORTS=x"}).warnings, ElementsAre(HasSubstr("did you mean HMSHIM_REPORT?")));
  EXPECT_THAT(parsed({"HMSHIM_BUDGET=8G"}).warnings, ElementsAre(HasSubstr("did you mean HMSHIM_DEVICE_BUDGET?")));
  EXPECT_THAT(parsed({"HMSHIM_XYZZY_FOO_BAR=1"}).warnings,
              ElementsAre(AllOf(HasSubstr("HMSHIM_XYZZY_FOO_BAR is not an option"), Not(HasSubstr("did you mean")))));
  EXPECT_THAT(parsed({"HMSHIM_DEVICE_BUDGT=8G"}).errors, IsEmpty());
}

TEST(Config, names_of_the_tests_are_ignored) { EXPECT_THAT(parsed({"HMSHIM_TEST_BUILD=/x"}).warnings, IsEmpty()); }

TEST(Config, the_first_of_a_repeated_name_counts_as_for_getenv) {
  EXPECT_EQ(parsed({"HMSHIM_DEVICE_BUDGET=1G", "HMSHIM_DEVICE_BUDGET=2G"}).device_budget, (Amount{1U << 30, false}));
}

TEST(Config, a_report_path_is_expanded_by_process_and_rank) {
  EXPECT_EQ(expand_path("/tmp/%r/run-%p.jsonl", 4711, "3"), "/tmp/3/run-4711.jsonl");
  EXPECT_EQ(expand_path("100%%", 1, "0"), "100%");
  EXPECT_EQ(expand_path("%%p", 1, "0"), "%p");
  EXPECT_EQ(parsed({"HMSHIM_REPORT=none"}).report, "");
  for (const char* junk : {"%", "a%", "%d", "%%%"}) {
    EXPECT_THAT(parsed({std::string("HMSHIM_REPORT=") + junk}).errors.size(), 1) << junk;
  }
}

TEST(Config, the_rank_is_the_launchers_number_and_nothing_else) {
  EXPECT_EQ(rank_in({}), "0");
  EXPECT_EQ(rank_in({"RANK=3"}), "3");
  EXPECT_EQ(rank_in({"PMI_RANK=7", "SLURM_PROCID=6"}), "6");
  EXPECT_EQ(rank_in({"OMPI_COMM_WORLD_RANK=12"}), "12");
  EXPECT_EQ(rank_in({"RANK=../../etc", "PMI_RANK=1"}), "1");
  EXPECT_EQ(rank_in({"RANK="}), "0");
}

}  // namespace
}  // namespace hmshim::interpose
