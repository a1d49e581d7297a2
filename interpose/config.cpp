#include "interpose/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <optional>
#include <utility>

namespace hmshim::interpose {
namespace {

constexpr std::string_view kPrefix = "HMSHIM_";
constexpr std::string_view kTestPrefix = "HMSHIM_TEST_";
constexpr std::string_view kCommandsOwn = "HMSHIM_LIB";  // where scripts/hmshim looks for the library

constexpr auto kNames = std::to_array<std::string_view>({
#define OPTION(field, name, type, default_value, values, sentence) name,
#include "interpose/options.def"
#undef OPTION
});

constexpr std::string_view kPolicies =
#define HMSHIM_POLICY(name, sentence) #name "|"
#include "policy/policies.def"
#undef HMSHIM_POLICY
    "off";
#define OPTION(field, name, type, default_value, values, sentence)                                  \
  static_assert(std::string_view(name) != "HMSHIM_POLICY" || std::string_view(values) == kPolicies, \
                "HMSHIM_POLICY in options.def must offer the policies of policies.def, then off");
#include "interpose/options.def"
#undef OPTION

// Calls visit(alternative, index) for "a|b|c" until it returns true; says whether it did.
template <class Visit>
bool any_alternative(std::string_view values, Visit visit) {
  for (unsigned index = 0;; ++index) {
    const std::size_t bar = values.find('|');
    if (visit(values.substr(0, bar), index)) return true;
    if (bar == std::string_view::npos) return false;
    values.remove_prefix(bar + 1);
  }
}

bool allows(std::string_view values, std::string_view alternative) {
  return any_alternative(values, [&](std::string_view each, unsigned) { return each == alternative; });
}

// ---- one parser a type: false when `text` is not one of `values` ----

// Digits only, no sign, no needless zero in front. "08" could be meant as octal and "-1" as no limit: neither is
// guessed at.
bool parse_number(std::string_view text, std::uint64_t& number) {
  if (text.empty() || (text[0] == '0' && text.size() > 1)) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && text[0] != '-';
}

// The factor of K, Ki, KiB (1024) and KB (1000), likewise M, G, T, in either case; of "" and "B"; 0 for anything else.
std::uint64_t unit_bytes(std::string_view unit) {
  std::string lower(unit);
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (lower.empty() || lower == "b") return 1;
  const std::size_t power = std::string_view("kmgt").find(lower[0]);
  if (power == std::string_view::npos) return 0;
  const std::string_view suffix = std::string_view(lower).substr(1);
  const bool is_decimal = suffix == "b";
  if (!is_decimal && !suffix.empty() && suffix != "i" && suffix != "ib") return 0;
  std::uint64_t factor = 1;
  for (std::size_t step = 0; step <= power; ++step) factor *= is_decimal ? 1000 : 1024;
  return factor;
}

bool parse_value(std::string_view values, std::string_view text, std::uint64_t& bytes) {
  if (text == "none" && allows(values, "none")) {
    bytes = kNoLimit;
    return true;
  }
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::uint64_t factor = unit_bytes(text.substr(digits));
  std::uint64_t number = 0;
  if (factor == 0 || !parse_number(text.substr(0, digits), number)) return false;
  // kNoLimit itself is not a size.
  return !__builtin_mul_overflow(number, factor, &bytes) && bytes != kNoLimit;
}

bool parse_value(std::string_view values, std::string_view text, Amount& amount) {
  if (text.ends_with('%') && allows(values, "PERCENT")) {
    amount.is_percent = true;
    return parse_number(text.substr(0, text.size() - 1), amount.value) && amount.value <= 100;
  }
  amount.is_percent = false;
  return parse_value(values, text, amount.value);
}

bool parse_value(std::string_view, std::string_view text, bool& is_on) {
  is_on = text == "on" || text == "1" || text == "true" || text == "yes";
  return is_on || text == "off" || text == "0" || text == "false" || text == "no";
}

template <class Enum>
requires std::is_enum_v<Enum>
bool parse_value(std::string_view values, std::string_view text, Enum& chosen) {
  return any_alternative(values, [&](std::string_view each, unsigned index) {
    chosen = static_cast<Enum>(index);
    return each == text;
  });
}

bool is_path_pattern(std::string_view text) {
  for (std::size_t at = text.find('%'); at != std::string_view::npos; at = text.find('%', at + 2)) {
    if (at + 1 == text.size() || std::string_view("pr%").find(text[at + 1]) == std::string_view::npos) return false;
  }
  return !text.empty();
}

// A word, or a path; the path "none" is the empty string.
bool parse_value(std::string_view values, std::string_view text, std::string& word) {
  if (allows(values, "PATH")) {
    word = text == "none" ? "" : text;
    return is_path_pattern(text);
  }
  word = text;
  return allows(values, text);
}

// File names; "none" is none of them.
bool parse_value(std::string_view, std::string_view text, Names& names) {
  names.clear();
  if (text == "none") return true;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    names.emplace_back(text.substr(begin, end - begin));
    if (names.back().empty() || names.back().find('/') != std::string::npos) return false;
    begin = end + 1;
  }
  return true;
}

// ---- messages ----

std::string describe(std::string_view values) {
  if (values == "on|off") return "on, off, 1, 0, true, false, yes or no";
  std::string text;
  any_alternative(values, [&](std::string_view each, unsigned index) {
    if (index > 0) text += " or ";
    if (each == "SIZE") {
      text += "a size such as 512M, 8G = 8GiB, 8GB (decimal) or plain bytes";
    } else if (each == "PERCENT") {
      text += "a share of the device's memory such as 60% (0% to 100%)";
    } else if (each == "NAMES") {
      text += "file names of libraries, separated by commas, such as libmine,libother.so.2";
    } else if (each == "PATH") {
      text += "a path in which %p is the process id, %r the rank and %% a percent sign";
    } else {
      text += each;
    }
    return false;
  });
  return text;
}

// Foreign text in a line of ours: short, and of one line whatever it holds.
std::string quotable(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  std::string result(text.substr(0, kLongest));
  std::ranges::replace_if(
      result, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  if (text.size() > kLongest) result += "...";
  return result;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// An option whose last words were written, as HMSHIM_BUDGET for HMSHIM_DEVICE_BUDGET, is as near as can be.
std::size_t distance(std::string_view name, std::string_view option) {
  return option.ends_with(name.substr(kPrefix.size() - 1)) ? 0 : edit_distance(name, option);
}

std::string unknown_option(std::string_view name) {
  const auto nearest =
      *std::ranges::min_element(kNames, {}, [&](std::string_view each) { return distance(name, each); });
  const bool is_near = distance(name, nearest) <= (nearest.size() - kPrefix.size()) / 2;
  return fmt::format("{} is not an option of hmshim and has no effect{}", quotable(name),
                     is_near ? fmt::format("; did you mean {}?", nearest) : "");
}

// ---- the environment ----

struct Variable {
  std::string_view name;
  std::string_view value;
};

template <class Visit>
void for_each_variable(const char* const* environment, Visit visit) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::size_t equals = entry.find('=');
    if (equals != std::string_view::npos) visit(Variable{entry.substr(0, equals), entry.substr(equals + 1)});
  }
}

// The first of a name counts, as for getenv.
std::optional<std::string_view> find(const std::vector<Variable>& variables, std::string_view name) {
  const auto found = std::ranges::find(variables, name, &Variable::name);
  return found == variables.end() ? std::nullopt : std::optional(found->value);
}

}  // namespace

Config parse(const char* const* environment) {
  std::vector<Variable> variables;
  for_each_variable(environment, [&](const Variable& variable) {
    const bool is_foreign = variable.name.starts_with(kTestPrefix) || variable.name == kCommandsOwn;
    if (variable.name.starts_with(kPrefix) && !is_foreign) variables.push_back(variable);
  });

  Config config;
#define OPTION(field, name, type, default_value, values, sentence)                                                    \
  parse_value(values, default_value, config.field);                                                                   \
  if (const auto text = find(variables, name); text && !text->empty() && !parse_value(values, *text, config.field)) { \
    config.errors.push_back(                                                                                          \
        fmt::format("{}={} makes no sense: give {}; the policy stays off", name, quotable(*text), describe(values))); \
    parse_value(values, default_value, config.field);                                                                 \
  }
#include "interpose/options.def"
#undef OPTION

  for (const Variable& variable : variables) {
    if (std::ranges::find(kNames, variable.name) == kNames.end())
      config.warnings.push_back(unknown_option(variable.name));
  }
  return config;
}

std::string rank_of(const char* const* environment) {
  std::vector<Variable> variables;
  for_each_variable(environment, [&](const Variable& variable) { variables.push_back(variable); });
  for (const std::string_view name : {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"}) {
    const auto rank = find(variables, name);
    if (std::uint64_t number = 0; rank && parse_number(*rank, number)) return std::string(*rank);
  }
  return "0";
}

std::string expand_path(std::string_view pattern, int pid, std::string_view rank) {
  std::string path;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '%' || at + 1 == pattern.size()) {
      path += pattern[at];
      continue;
    }
    switch (pattern[++at]) {
      case 'p':
        path += fmt::format("{}", pid);
        break;
      case 'r':
        path += rank;
        break;
      default:
        path += pattern[at];
    }
  }
  return path;
}

}  // namespace hmshim::interpose
