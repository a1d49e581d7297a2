#include "tests/simgpu/model/profile.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <type_traits>

namespace hmshim::simgpu {
namespace {

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// What is wrong with a value; load_profile adds file and line.
[[noreturn]] void reject(std::string_view text, const std::string& expected) {
  throw ProfileError("'" + std::string(text) + "' is not " + expected);
}

template <typename T>
T parse_number(std::string_view text, T least, const std::string& expected) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // from_chars takes "nan" and "inf" too.
  const bool is_in_range = value >= least && value <= std::numeric_limits<T>::max();
  if (error != std::errc() || end != text.data() + text.size() || !is_in_range) reject(text, expected);
  return value;
}

/// "80GiB", "64KiB", "4096": binary units only, device memory is never anything else.
std::uint64_t parse_bytes(std::string_view text) {
  const std::string expected = "a positive size such as 40GiB, 64KiB or 4096";
  static constexpr std::pair<std::string_view, int> kUnits[] = {{"GiB", 30}, {"MiB", 20}, {"KiB", 10}};
  for (const auto& [unit, shift] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const auto count = parse_number<std::uint64_t>(text.substr(0, text.size() - unit.size()), 1, expected);
    if (count > (UINT64_MAX >> shift)) reject(text, expected);
    return count << shift;
  }
  return parse_number<std::uint64_t>(text, 1, expected);
}

Duplex parse_duplex(std::string_view text) {
  if (text == "full") return Duplex::kFull;
  if (text == "serialised") return Duplex::kSerialised;
  reject(text, "'full' or 'serialised'");
}

/// "4KiB:0.18 64KiB:0.87 2MiB:1", sizes rising.
std::vector<CurvePoint> parse_curve(std::string_view text) {
  const std::string expected = "points such as '4KiB:0.18 2MiB:1': sizes rising, efficiencies above 0 and up to 1";
  std::vector<CurvePoint> curve;
  for (std::string_view rest = trim(text); !rest.empty();) {
    const std::string_view point = rest.substr(0, rest.find(' '));
    rest = trim(rest.substr(point.size()));
    const auto colon = point.find(':');
    if (colon == std::string_view::npos) reject(point, expected);
    const std::uint64_t bytes = parse_bytes(point.substr(0, colon));
    const double efficiency = parse_number<double>(point.substr(colon + 1), 0, expected);
    const bool is_rising = curve.empty() || curve.back().bytes < bytes;
    if (efficiency <= 0 || efficiency > 1 || !is_rising) reject(point, expected);
    curve.push_back({bytes, efficiency});
  }
  if (curve.empty()) reject(text, expected);
  return curve;
}

using Setter = std::function<void(Profile&, std::string_view)>;

Setter bytes(std::uint64_t Profile::*field) {
  return [=](Profile& profile, std::string_view text) { profile.*field = parse_bytes(text); };
}
Setter rate(double Profile::*field) {
  return [=](Profile& profile, std::string_view text) {
    profile.*field = parse_number<double>(text, 0, "a rate in GB/s above 0");
    if (profile.*field == 0) reject(text, "a rate in GB/s above 0");
  };
}
Setter time(TimeNs Profile::*field, TimeNs least = 0) {
  return [=](Profile& profile, std::string_view text) {
    const std::string expected = "a whole number of nanoseconds, at least " + std::to_string(least);
    profile.*field = parse_number<TimeNs>(text, least, expected);
  };
}
template <typename T>
Setter count(T Profile::*field, std::type_identity_t<T> least = 1) {
  return [=](Profile& profile, std::string_view text) {
    profile.*field = parse_number<T>(text, least, "a whole number, at least " + std::to_string(least));
  };
}
Setter duplex(Duplex Profile::*field) {
  return [=](Profile& profile, std::string_view text) { profile.*field = parse_duplex(text); };
}

const std::map<std::string_view, Setter>& setters() {
  static const std::map<std::string_view, Setter> table = {
      {"name", [](Profile& profile, std::string_view text) { profile.name = text; }},
      {"compute_major", count(&Profile::compute_major)},
      {"compute_minor", count(&Profile::compute_minor, 0)},
      {"multiprocessors", count(&Profile::multiprocessors)},
      {"capacity", bytes(&Profile::capacity_bytes)},
      {"hbm_gbps", rate(&Profile::hbm_gbps)},
      {"host_ram", bytes(&Profile::host_ram_bytes)},
      {"host_copy_gbps", rate(&Profile::host_copy_gbps)},
      {"link_h2d_gbps", rate(&Profile::link_h2d_gbps)},
      {"link_d2h_gbps", rate(&Profile::link_d2h_gbps)},
      {"link_total_gbps", rate(&Profile::link_total_gbps)},
      {"link_curve", [](Profile& profile, std::string_view text) { profile.link_curve = parse_curve(text); }},
      {"planned_duplex", duplex(&Profile::planned_duplex)},
      {"eviction_duplex", duplex(&Profile::eviction_duplex)},
      {"fault_batch_faults", count(&Profile::fault_batch_faults)},
      {"fault_group_ns", time(&Profile::fault_group_ns)},
      {"fault_block_ns", time(&Profile::fault_block_ns)},
      {"copy_engine_fault_page_ns", time(&Profile::copy_engine_fault_page_ns)},
      {"cpu_fault_block_ns", time(&Profile::cpu_fault_block_ns)},
      {"prefetch_call_ns", time(&Profile::prefetch_call_ns, 1)},
      {"prefetch_block_ns", time(&Profile::prefetch_block_ns)},
      {"demote_block_first_ns", time(&Profile::demote_block_first_ns)},
      {"demote_block_later_ns", time(&Profile::demote_block_later_ns)},
      {"demote_run", bytes(&Profile::demote_run_bytes)},
      {"discard_block_ns", time(&Profile::discard_block_ns)},
      {"advise_call_ns", time(&Profile::advise_call_ns, 1)},
      {"advise_block_ns", time(&Profile::advise_block_ns)},
      {"collapse_block_ns", time(&Profile::collapse_block_ns)},
      {"evict_block_ns", time(&Profile::evict_block_ns)},
      {"steal_unused_ns", time(&Profile::steal_unused_ns)},
      {"thrashing_lapse_ns", time(&Profile::thrashing_lapse_ns)},
      {"access_counter_threshold", count(&Profile::access_counter_threshold, 0)},
      // A call takes time: that orders the calls of different agents (Agents::is_turn).
      {"launch_host_ns", time(&Profile::launch_host_ns, 1)},
      {"launch_device_ns", time(&Profile::launch_device_ns)},
      {"call_host_ns", time(&Profile::call_host_ns, 1)},
      {"alloc_host_ns", time(&Profile::alloc_host_ns, 1)},
      {"queue_depth", count(&Profile::queue_depth)},
  };
  return table;
}

std::string_view set_from_line(Profile& profile, std::string_view line) {
  const auto hash = line.find('#');
  const std::string_view source = hash == std::string_view::npos ? "" : trim(line.substr(hash + 1));
  const std::string_view assignment = line.substr(0, hash);
  const auto equals = assignment.find('=');
  if (equals == std::string_view::npos) throw ProfileError("expected 'key = value  # source'");
  const std::string_view key = trim(assignment.substr(0, equals));
  const std::string_view value = trim(assignment.substr(equals + 1));
  const auto setter = setters().find(key);
  if (setter == setters().end()) throw ProfileError("unknown key '" + std::string(key) + "'");
  if (source.empty()) {
    throw ProfileError("'" + std::string(key) +
                       "' has no source: end the line with '# <where it is from>' or '# swept'");
  }
  setter->second(profile, value);
  return setter->first;
}

}  // namespace

Profile load_profile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw ProfileError(path + ": " + std::strerror(errno));
  Profile profile;
  std::set<std::string_view> seen;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string_view text = trim(line);
    if (text.empty() || text.front() == '#') continue;
    try {
      const std::string_view key = set_from_line(profile, text);
      if (!seen.insert(key).second) throw ProfileError("'" + std::string(key) + "' is given twice");
    } catch (const ProfileError& error) {
      throw ProfileError(path + ":" + std::to_string(number) + ": " + error.what());
    }
  }
  for (const auto& [key, setter] : setters()) {
    if (!seen.contains(key)) throw ProfileError(path + ": '" + std::string(key) + "' is missing");
  }
  if (profile.capacity_bytes % (2U << 20) != 0) throw ProfileError(path + ": 'capacity' is not a multiple of 2MiB");
  return profile;
}

}  // namespace hmshim::simgpu
