#include "bench/replay_options.hpp"

#include <charconv>
#include <stdexcept>
#include <string_view>

namespace hmshim::bench {

const char* const kReplayUsage =
    "usage: replay --trace FILE --policy NAME (--device NAME | --ideal-costs) (--ratio R | --budget SIZE) [OPTION...]\n"
    "  --trace FILE        JSON lines, gzip'd or not (bench/README.md)\n"
    "  --policy NAME       HMSHIM_POLICY\n"
    "  --device NAME       a profile of tests/simgpu/profiles, or a path to one\n"
    "  --ideal-costs       the profile ideal-25gbps: only link and memory limit\n"
    "  --ratio R           device memory = peak of live bytes / R, and as much host memory as it takes\n"
    "  --budget SIZE       HMSHIM_DEVICE_BUDGET; device and host memory are the profile's\n"
    "  --iterations N      (default: 10)\n"
    "  --field KEY         key of the durations: dur_us or dur_adj_us (default: dur_us)\n"
    "  --allocator WORD    async: cuMemAllocAsync; sync: cuMemAlloc (default: async)\n"
    "  --bounds FILE       what scripts/plan_table keeps: adds bound_s and pct_bound, null where the cell is not in "
    "it\n"
    "  --json              one JSON object instead of a table\n"
    "Other HMSHIM_* variables reach the library as they are.\n";

namespace {

[[noreturn]] void reject(std::string_view option, const std::string& value, const char* expected) {
  throw std::invalid_argument(std::string(option) + " needs " + expected + ", not \"" + value + '"');
}

template <class Number>
Number parse_number(std::string_view option, const std::string& text, Number least, Number most, const char* expected) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || !(number >= least && number <= most))
    reject(option, text, expected);
  return number;
}

}  // namespace

ReplayOptions parse_replay_options(int argc, char** argv) {
  ReplayOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw std::invalid_argument(std::string(name) + " needs a value");
      return argv[++i];
    };
    if (name == "--trace") {
      options.trace = value();
    } else if (name == "--policy") {
      options.policy = value();
    } else if (name == "--device") {
      options.device = value();
    } else if (name == "--ideal-costs") {
      options.device = "ideal-25gbps";
    } else if (name == "--ratio") {
      options.ratio = parse_number<double>(name, value(), 1e-3, 1e6, "a number above 0");
    } else if (name == "--budget") {
      options.budget = value();
    } else if (name == "--iterations") {
      options.iterations = parse_number<std::uint32_t>(name, value(), 1, 1'000'000, "a whole number, at least 1");
    } else if (name == "--field") {
      options.field = value();
    } else if (name == "--allocator") {
      const std::string word = value();
      if (word != "async" && word != "sync") reject(name, word, "async or sync");
      options.allocator = word == "async" ? Allocator::Async : Allocator::Sync;
    } else if (name == "--bounds") {
      options.bounds = value();
    } else if (name == "--json") {
      options.as_json = true;
    } else if (name == "--guest") {
      options.is_guest = true;
    } else {
      throw std::invalid_argument("unknown argument \"" + std::string(name) + '"');
    }
  }
  if (options.trace.empty()) throw std::invalid_argument("--trace is needed");
  if (options.policy.empty()) throw std::invalid_argument("--policy is needed");
  if (options.device.empty()) throw std::invalid_argument("one of --device and --ideal-costs is needed");
  if (options.ratio.has_value() == options.budget.has_value())
    throw std::invalid_argument("one of --ratio and --budget is needed");
  return options;
}

}  // namespace hmshim::bench
