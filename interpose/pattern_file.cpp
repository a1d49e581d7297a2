#include "interpose/pattern_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "interpose/output_file.hpp"
#include "policy/iteration_detector.hpp"
#include "policy/learned_plan.hpp"

namespace hmshim::interpose {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kSchema = 1;
constexpr std::string_view kWhat = "hmshim profile";
// Larger than any that write_patterns makes: what a PlanBook keeps, at some hundred bytes a launch.
constexpr std::size_t kMostBytes = std::size_t{256} << 20;
// Of all extents together, more than a host has memory for: the planner takes memory for every block of them.
constexpr std::uint64_t kMostIterationBytes = std::uint64_t{1} << 42;
constexpr double kLongestLaunchUs = 1e9;
constexpr std::uint64_t kMostDevices = 1U << 15;

// What is wrong with a line.
struct Refusal {
  std::string why;
};

std::uint64_t number(const Json& object, const char* key, std::uint64_t end) {
  const auto value = object.find(key);
  if (value == object.end() || !value->is_number_unsigned() || value->get<std::uint64_t>() >= end)
    throw Refusal{fmt::format("\"{}\" must be a number below {}", key, end)};
  return value->get<std::uint64_t>();
}

std::string_view word(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_string() ? std::string_view(value->get_ref<const std::string&>()) : "";
}

// Takes the lines of a text, each a JSON object of its kind.
class Lines {
 public:
  explicit Lines(std::string_view text) : text_(text) {}

  Json next(std::string_view kind) {
    ++line_;
    const std::size_t end = text_.find('\n');
    if (end == std::string_view::npos) throw Refusal{"the text ends too early"};
    Json object = Json::parse(text_.substr(0, end), nullptr, false);
    text_.remove_prefix(end + 1);
    if (!object.is_object() || word(object, "t") != kind)
      throw Refusal{fmt::format("expected an object with \"t\":\"{}\"", kind)};
    return object;
  }
  [[nodiscard]] bool is_at_end() const noexcept { return text_.empty(); }
  [[nodiscard]] std::size_t line() const noexcept { return line_; }

 private:
  std::string_view text_;
  std::size_t line_ = 0;
};

policy::Iteration::Extent read_extent(const Json& object, std::uint64_t id, std::uint64_t launches) {
  if (number(object, "id", id + 1) != id) throw Refusal{fmt::format("\"id\" must be {}", id)};
  policy::Iteration::Extent extent{};
  extent.bytes = number(object, "bytes", kMostIterationBytes);
  if (extent.bytes == 0 || extent.bytes % policy::kBlockBytes != 0)
    throw Refusal{fmt::format("\"bytes\" must be a multiple of {}", policy::kBlockBytes)};
  extent.operand = static_cast<std::uint32_t>(number(object, "operand", ~std::uint32_t{0}));
  const bool persists = word(object, "kind") == "weight";
  extent.born = persists ? policy::kPersistent : static_cast<policy::LaunchIndex>(number(object, "born", launches));
  extent.id = persists ? static_cast<policy::ExtentId>(number(object, "extent", policy::kNoExtent)) : policy::kNoExtent;
  return extent;
}

void read_launch(const Json& object, policy::Iteration& iteration, std::vector<std::uint64_t>& durations_ns) {
  const std::string_view signature = word(object, "signature");
  policy::Iteration::Launch launch{0, static_cast<std::uint32_t>(iteration.operands.size()), 0};
  const auto [end, error] =
      std::from_chars(signature.data(), signature.data() + signature.size(), launch.signature, 16);
  if (error != std::errc() || end != signature.data() + signature.size() || signature.size() != 16)
    throw Refusal{"\"signature\" must be 16 hexadecimal digits"};
  launch.stream = static_cast<std::uint8_t>(number(object, "stream", policy::kMostStreams));
  const auto operands = object.find("in");
  if (operands == object.end() || !operands->is_array() || operands->size() > policy::kMaxTouched)
    throw Refusal{fmt::format("\"in\" must be an array of at most {}", policy::kMaxTouched)};
  for (const Json& operand : *operands) {
    const bool is_extent = operand.is_number_unsigned() && operand.get<std::uint64_t>() < iteration.extents.size();
    if (!is_extent && !operand.is_null()) throw Refusal{"\"in\" must hold the ids of extents, or null"};
    iteration.operands.push_back(is_extent ? operand.get<policy::PatternExtent>() : policy::kUnplanned);
  }
  const auto duration = object.find("dur_us");
  if (duration == object.end() || !duration->is_number() || !(duration->get<double>() > 0) ||
      duration->get<double>() > kLongestLaunchUs)
    throw Refusal{"\"dur_us\" must be a time above zero"};
  durations_ns.push_back(
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(duration->get<double>() * 1000))));
  iteration.launches.push_back(launch);
}

// Every extent is named where it says that it is first, and what persists has an id of its own.
void check(const policy::Iteration& iteration) {
  std::vector<policy::ExtentId> ids;
  for (policy::PatternExtent extent = 0; extent < iteration.extents.size(); ++extent) {
    const policy::Iteration::Extent& expected = iteration.extents[extent];
    const auto refuse = [&](std::string_view why) { throw Refusal{fmt::format("extent {} {}", extent, why)}; };
    if (expected.operand >= iteration.operands.size() || iteration.operands[expected.operand] != extent)
      refuse("is not named where its \"operand\" says");
    if (expected.born == policy::kPersistent) {
      ids.push_back(expected.id);
      continue;
    }
    const auto named = iteration.operands_of(expected.born);
    const std::size_t first = iteration.launches[expected.born].first_operand;
    if (expected.operand < first || expected.operand >= first + named.size()) refuse("is not named where it is born");
  }
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) throw Refusal{"two extents are one allocation"};
}

LearnedPattern read_pattern(Lines& lines) {
  const Json head = lines.next("P");
  LearnedPattern pattern;
  pattern.device = static_cast<std::uint16_t>(number(head, "device", kMostDevices));
  const std::uint64_t launches = number(head, "launches", policy::IterationDetector::kMaxPeriodLaunches * 2);
  const std::uint64_t extents = number(head, "extents", std::uint64_t{1} << 24);
  if (launches == 0 || extents == 0) throw Refusal{"a pattern has launches and extents"};
  policy::Iteration iteration;
  std::uint64_t bytes = 0;
  for (std::uint64_t id = 0; id < extents; ++id) {
    iteration.extents.push_back(read_extent(lines.next("T"), id, launches));
    bytes += iteration.extents.back().bytes;
    if (bytes > kMostIterationBytes)
      throw Refusal{fmt::format("all \"bytes\" together exceed {}", kMostIterationBytes)};
  }
  for (std::uint64_t k = 0; k < launches; ++k) read_launch(lines.next("K"), iteration, pattern.durations_ns);
  check(iteration);
  pattern.iteration = std::make_shared<const policy::Iteration>(std::move(iteration));
  return pattern;
}

void read_all(Lines& lines, PatternFile& file) {
  const Json head = lines.next("h");
  if (word(head, "what") != kWhat) throw Refusal{fmt::format("\"what\" is not \"{}\"", kWhat)};
  const std::uint64_t schema = number(head, "schema", ~std::uint64_t{0});
  if (schema > kSchema) throw Refusal{fmt::format("its schema is {}, newer than {}", schema, kSchema)};
  file.is_ours = true;
  const std::uint64_t patterns = number(head, "patterns", 1U << 20);
  for (std::uint64_t i = 0; i < patterns; ++i) file.patterns.push_back(read_pattern(lines));
  if (!lines.is_at_end()) throw Refusal{"there is more after the last pattern"};
}

void write_pattern(const LearnedPattern& pattern, std::string& text) {
  const policy::Iteration& iteration = *pattern.iteration;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{{\"t\":\"P\",\"device\":{},\"launches\":{},\"extents\":{}}}\n", pattern.device,
                 iteration.launches.size(), iteration.extents.size());
  for (std::size_t id = 0; id < iteration.extents.size(); ++id) {
    const policy::Iteration::Extent& extent = iteration.extents[id];
    const bool persists = extent.born == policy::kPersistent;
    fmt::format_to(out, "{{\"t\":\"T\",\"id\":{},\"bytes\":{},\"kind\":\"{}\",\"{}\":{},\"operand\":{}}}\n", id,
                   extent.bytes, persists ? "weight" : "temporary", persists ? "extent" : "born",
                   persists ? extent.id : extent.born, extent.operand);
  }
  for (policy::LaunchIndex k = 0; k < iteration.launches.size(); ++k) {
    fmt::format_to(out, "{{\"t\":\"K\",\"signature\":\"{:016x}\",\"stream\":{},\"in\":[",
                   iteration.launches[k].signature, iteration.launches[k].stream);
    const char* separator = "";
    for (const policy::PatternExtent extent : iteration.operands_of(k)) {
      text += std::exchange(separator, ",");
      extent == policy::kUnplanned ? text += "null" : text += std::to_string(extent);
    }
    const std::uint64_t ns = pattern.durations_ns[k];
    fmt::format_to(out, "],\"dur_us\":{}.{:03}}}\n", ns / 1000, ns % 1000);
  }
}

}  // namespace

PatternFile read_patterns(std::string_view text) {
  PatternFile file;
  Lines lines(text);
  try {
    read_all(lines, file);
  } catch (const Refusal& refusal) {
    file.patterns.clear();
    file.refusal = fmt::format("line {}: {}", lines.line(), refusal.why);
  }
  return file;
}

std::string write_patterns(std::span<const LearnedPattern> patterns) {
  std::string text =
      fmt::format("{{\"t\":\"h\",\"schema\":{},\"what\":\"{}\",\"patterns\":{}}}\n", kSchema, kWhat, patterns.size());
  for (const LearnedPattern& pattern : patterns) write_pattern(pattern, text);
  return text;
}

PatternFile load_patterns(const std::string& path) {
  const auto refused = [](std::string why) { return PatternFile{{}, std::move(why), false}; };
  // A FIFO that nobody writes would hold the program for ever.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return errno == ENOENT ? PatternFile{{}, "", true} : refused(std::strerror(errno));
  struct stat status {};
  std::string text;
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<std::uint64_t>(status.st_size) > kMostBytes) {
    close(descriptor);
    return refused("not a file of the size of a profile");
  }
  text.resize(static_cast<std::size_t>(status.st_size));
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = read(descriptor, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  close(descriptor);
  text.resize(done);
  return text.empty() ? PatternFile{{}, "", true} : read_patterns(text);
}

std::string save_patterns(const std::string& path, std::span<const LearnedPattern> patterns) {
  // A link stays one: what it leads to is replaced.
  std::error_code error_of_link;
  std::filesystem::path target = std::filesystem::canonical(path, error_of_link);
  if (error_of_link) target = path;
  const std::string unfinished = fmt::format("{}.{}", target.string(), getpid());
  unlink(unfinished.c_str());
  OutputFile file;
  if (const int error = file.open_append(unfinished.c_str()); error != 0) return std::strerror(error);
  int error = file.write(write_patterns(patterns));
  file.close();
  if (error == 0 && std::rename(unfinished.c_str(), target.c_str()) != 0) error = errno;
  if (error == 0) return "";
  unlink(unfinished.c_str());
  return std::strerror(error);
}

}  // namespace hmshim::interpose
