// Plans one iteration of a trace and prints, as one JSON object, what the plan is worth when only link and memory limit
// it: no host cost, the pattern known, every launch as long as the trace says.
#include <ctime>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "bench/trace_reader.hpp"
#include "policy/planner.hpp"

namespace hmshim::bench {
namespace {

constexpr const char* kUsage =
    "usage: plan TRACE (--ratio R | --capacity-gib C) --link-gbps B [--field KEY] [--no-clean-copies] [--half-duplex]\n"
    "  TRACE              JSON lines, gzip'd or not (bench/README.md)\n"
    "  --ratio R          device memory = peak of live bytes / R\n"
    "  --capacity-gib C   device memory in GiB\n"
    "  --link-gbps B      1e9 bytes a second, each way\n"
    "  --field KEY        key of the durations (default: dur_us)\n"
    "  --no-clean-copies  every piece that leaves is written back\n"
    "  --half-duplex      one direction at a time\n";

struct Options {
  std::string trace;
  std::string field = "dur_us";
  std::optional<double> ratio;
  std::optional<double> capacity_gib;
  double link_gbps = 0;
  bool clean_copies = true;
  bool full_duplex = true;
};

double positive(std::string_view option, const std::string& text) {
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || !(value > 0) || value > 1e9) {
    throw std::invalid_argument(std::string(option) + " needs a number above 0, not \"" + text + '"');
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw std::invalid_argument(std::string(name) + " needs a value");
      return argv[++i];
    };
    if (name == "--ratio") {
      options.ratio = positive(name, value());
    } else if (name == "--capacity-gib") {
      options.capacity_gib = positive(name, value());
    } else if (name == "--link-gbps") {
      options.link_gbps = positive(name, value());
    } else if (name == "--field") {
      options.field = value();
    } else if (name == "--no-clean-copies") {
      options.clean_copies = false;
    } else if (name == "--half-duplex") {
      options.full_duplex = false;
    } else if (name.starts_with("-") || !options.trace.empty()) {
      throw std::invalid_argument("unknown argument \"" + std::string(name) + '"');
    } else {
      options.trace = name;
    }
  }
  if (options.trace.empty()) throw std::invalid_argument("no trace is named");
  if (options.ratio.has_value() == options.capacity_gib.has_value()) {
    throw std::invalid_argument("one of --ratio and --capacity-gib is needed");
  }
  if (options.link_gbps == 0) throw std::invalid_argument("--link-gbps is needed");
  return options;
}

// Of this thread, so that a busy machine does not make the planner look slow. It works in one thread.
double cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::uint64_t capacity_of(const policy::AccessPattern& pattern, const Options& options) {
  if (options.capacity_gib) return static_cast<std::uint64_t>(*options.capacity_gib * 0x1p30);
  const policy::PieceMap whole(pattern, std::uint64_t{1} << 60);
  return static_cast<std::uint64_t>(static_cast<double>(whole.peak_live_bytes()) / *options.ratio);
}

nlohmann::ordered_json plan(const Options& options) {
  const Trace trace = read_trace(options.trace, options.field);
  if (trace.is_recording)
    throw std::runtime_error(options.trace + ": is a recording; cut an iteration out of it (scripts/cut_trace)");
  const policy::AccessPattern pattern = pattern_of(trace);
  const std::uint64_t capacity_bytes = capacity_of(pattern, options);
  policy::CostModel cost = policy::CostModel::ideal(options.link_gbps * 1e9);
  cost.clean_copies = options.clean_copies;
  cost.full_duplex = options.full_duplex;

  const double start_s = cpu_s();
  const policy::PieceMap map(pattern, capacity_bytes);
  const auto plan = policy::make_plan(map, cost, capacity_bytes);
  const double plan_s = cpu_s() - start_s;

  nlohmann::ordered_json out = {
      {"schema", 1},
      {"policy", "planner"},
      {"trace", options.trace},
      {"field", options.field},
      {"ratio", static_cast<double>(map.peak_live_bytes()) / static_cast<double>(capacity_bytes)},
      {"capacity_bytes", capacity_bytes},
      {"link_gbps", options.link_gbps},
      {"clean_copies", cost.clean_copies},
      {"full_duplex", cost.full_duplex},
      {"ideal_s", static_cast<double>(map.compute_ns()) * 1e-9},
  };
  if (!plan) {
    const policy::LaunchIndex launch = map.largest_launch();
    out["status"] = "infeasible: launch " + std::to_string(launch) + " touches " +
                    std::to_string(map.touched_bytes(launch)) + " bytes";
    return out;
  }
  // The plan's own cost is that of its third iteration. What counts is what it settles to.
  const policy::ScheduleCost steady = policy::simulate(map, plan->schedule, cost, capacity_bytes, 5, 5);
  const double steady_s = static_cast<double>(steady.iteration_ns) * 1e-9;
  out.update({{"status", "planned"},
              {"steady_iteration_s", steady_s},
              {"pct_ideal", 100 * static_cast<double>(map.compute_ns()) / static_cast<double>(steady.iteration_ns)},
              {"h2d_bytes", steady.h2d_bytes},
              {"d2h_bytes", steady.d2h_bytes},
              {"dropped_bytes", steady.dropped_bytes},
              {"emergencies", steady.emergencies},
              {"peak_resident_bytes", steady.peak_used_bytes},
              {"plan_s", plan_s},
              {"evaluations", plan->evaluations}});
  return out;
}

}  // namespace
}  // namespace hmshim::bench

int main(int argc, char** argv) {
  using namespace hmshim::bench;
  try {
    std::cout << plan(parse(argc, argv)).dump() << '\n';
  } catch (const std::invalid_argument& error) {
    std::cerr << "error: " << error.what() << '\n' << kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
