#include "interpose/granularity.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "interpose/config.hpp"

namespace hmshim::interpose {

namespace {

// PyTorch reads the first, and the second where the first is not set; versions before 2.9 know only the second.
constexpr std::array<std::string_view, 2> kVariables{"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
constexpr std::string_view kBackend = "backend:cudaMallocAsync";

std::optional<std::string_view> value_of(const char* const* environment, std::string_view name) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

// The value of a key in "key:value,key:value"; blanks around either do not count.
std::optional<std::string_view> setting(std::string_view text, std::string_view key) {
  const auto trimmed = [](std::string_view part) {
    const std::size_t begin = part.find_first_not_of(" \t");
    return begin == part.npos ? std::string_view() : part.substr(begin, part.find_last_not_of(" \t") - begin + 1);
  };
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::size_t colon = item.find(':');
    if (colon != item.npos && trimmed(item.substr(0, colon)) == key) return trimmed(item.substr(colon + 1));
  }
  return std::nullopt;
}

bool is_python() noexcept {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  const std::string_view program(path, length > 0 ? static_cast<std::size_t>(length) : 0);
  return program.substr(program.rfind('/') + 1).starts_with("python");
}

GranularityChoice& first_choice() noexcept {
  static GranularityChoice choice;
  return choice;
}

// Null until a choice was made.
std::atomic<GranularityChoice*> applied{nullptr};
Granularity wanted_by_user = Granularity::Auto;

decltype(GranularityChoice::found) found_in(const char* const* environment) {
  decltype(GranularityChoice::found) found;
  for (std::size_t i = 0; i < kVariables.size(); ++i) found[i] = value_of(environment, kVariables[i]).value_or("");
  return found;
}

}  // namespace

std::string_view to_string(Granularity granularity) noexcept {
  switch (granularity) {
    case Granularity::Tensor:
      return "tensor";
    case Granularity::Segment:
      return "segment";
    case Granularity::Auto:
      return "auto";
  }
  return "unknown";
}

GranularityChoice choose_granularity(Granularity wanted, const char* const* environment) {
  if (wanted == Granularity::Segment) return {Granularity::Segment, "HMSHIM_GRANULARITY=segment", {}};
  for (const std::string_view name : kVariables) {
    const std::string_view text = value_of(environment, name).value_or("");
    if (const auto backend = setting(text, "backend")) {
      return {*backend == "cudaMallocAsync" ? Granularity::Tensor : Granularity::Segment,
              fmt::format("{} has backend:{}", name, *backend),
              {}};
    }
    // Segments that grow are made of virtual memory management, which only PyTorch's own allocator has.
    if (wanted == Granularity::Auto && setting(text, "expandable_segments") == "True")
      return {Granularity::Segment, fmt::format("{} has expandable_segments:True", name), {}};
  }
  GranularityChoice choice{Granularity::Tensor,
                           wanted == Granularity::Tensor ? "HMSHIM_GRANULARITY=tensor" : "nothing speaks against it",
                           {}};
  for (const std::string_view name : kVariables) {
    const std::string_view text = value_of(environment, name).value_or("");
    const bool is_other_set =
        text.empty() && !value_of(environment, kVariables[name == kVariables[0]]).value_or("").empty();
    if (is_other_set) continue;  // setting the first would hide the user's keys in the second
    choice.variables.emplace_back(name, text.empty() ? std::string(kBackend) : fmt::format("{},{}", text, kBackend));
  }
  return choice;
}

void apply_granularity() noexcept try {
  if (!is_python()) return;
  const Config config = parse(environ);
  if (config.disable || config.policy == "off" || !config.errors.empty()) {
    first_choice().why = "the library stands aside";
    return;
  }
  wanted_by_user = config.granularity;
  first_choice() = choose_granularity(config.granularity, environ);
  first_choice().found = found_in(environ);
  applied = &first_choice();
} catch (...) {
  // No memory this early: the framework keeps its own allocator.
}

const GranularityChoice& granularity_of_process() noexcept {
  const GranularityChoice* choice = applied.load(std::memory_order_acquire);
  return choice != nullptr ? *choice : first_choice();
}

char* allocator_variable(const char* name) noexcept try {
  GranularityChoice* choice = applied.load(std::memory_order_acquire);
  if (choice == nullptr || std::ranges::find(kVariables, name) == kVariables.end()) return nullptr;
  if (choice->found != found_in(environ)) {
    // Never freed: what getenv has returned may be in use. Threads that come here at once each make the same.
    auto fresh = std::make_unique<GranularityChoice>(choose_granularity(wanted_by_user, environ));
    fresh->found = found_in(environ);
    choice = fresh.release();
    applied.store(choice, std::memory_order_release);
  }
  for (auto& [known, value] : choice->variables) {
    if (known == name) return value.data();
  }
  return nullptr;
} catch (...) {
  return nullptr;  // no memory: what the program has set
}

}  // namespace hmshim::interpose
