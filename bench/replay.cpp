// Plays a training trace through the library on the simulated GPU and says how near the steady iteration comes to one
// that never waits. The command starts itself again as the guest, with libhmshim.so preloaded.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "bench/replay_guest.hpp"
#include "bench/replay_options.hpp"
#include "bench/trace_reader.hpp"
#include "tests/simgpu/model/profile.hpp"
#include "tests/support/guest_process.hpp"

namespace hmshim::bench {
namespace {

using Json = nlohmann::ordered_json;

// The first iterations learn and settle: the last third is taken for steady.
constexpr std::uint32_t kSteadyShare = 3;

// More than any trace needs: how the host is filled is not the subject of a run by ratio.
constexpr const char* kUnlimitedHostMemory = "1024TiB";

std::filesystem::path build_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
}

// ---- the guest's side: one JSON line a row of figures ----

void play_as_guest(const ReplayOptions& options) {
  const Trace trace = read_trace(options.trace, options.field);
  const std::string image = (build_folder() / "bench" / "replay_kernels.fatbin").string();
  for (const simgpu_stats& stats : play(trace, options.iterations, options.allocator, image)) {
    nlohmann::json row;
#define SIMGPU_FIGURE(name) row[#name] = stats.name;
    SIMGPU_FIGURES(SIMGPU_FIGURE)
#undef SIMGPU_FIGURE
    std::cout << row.dump() << '\n';
  }
}

// ---- the command's side ----

// Every variable of the caller's that is meant for the library or the simulated GPU, then what the options say.
support::Environment guest_environment(const ReplayOptions& options, const Trace& trace, const std::string& report) {
  support::Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (text.starts_with("HMSHIM_") || text.starts_with("SIMGPU_"))
      environment[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  }
  const std::filesystem::path build = build_folder();
  environment["LD_LIBRARY_PATH"] = (build / "simgpu").string();
  environment["LD_PRELOAD"] = (build / "libhmshim.so").string();
  environment["HMSHIM_POLICY"] = options.policy;
  environment["HMSHIM_REPORT"] = report;
  environment["SIMGPU_PROFILE"] = options.device;
  if (options.ratio) {
    const double capacity_bytes = static_cast<double>(trace.peak_live_bytes()) / *options.ratio;
    environment["SIMGPU_CAPACITY"] = std::to_string(static_cast<std::uint64_t>(capacity_bytes));
    environment["SIMGPU_HOST_RAM"] = kUnlimitedHostMemory;
    environment["HMSHIM_DEVICE_BUDGET"] = "100%";
  } else {
    environment["HMSHIM_DEVICE_BUDGET"] = *options.budget;
  }
  return environment;
}

std::vector<nlohmann::json> rows_of(const std::string& out) {
  std::vector<nlohmann::json> rows;
  for (std::size_t begin = 0; begin < out.size();) {
    const std::size_t end = std::min(out.find('\n', begin), out.size());
    rows.push_back(nlohmann::json::parse(out.substr(begin, end - begin)));
    begin = end + 1;
  }
  return rows;
}

// Means over the steady iterations, from rows that count up from the start of the run.
class Steady {
 public:
  explicit Steady(const std::vector<nlohmann::json>& rows)
      : first_(rows.at(rows.size() - 1 - std::max<std::size_t>(1, (rows.size() - 1) / kSteadyShare))),
        last_(rows.back()),
        iterations_(std::max<std::size_t>(1, (rows.size() - 1) / kSteadyShare)) {}

  [[nodiscard]] std::uint64_t operator[](const char* figure) const {
    return (last_.at(figure).get<std::uint64_t>() - first_.at(figure).get<std::uint64_t>()) / iterations_;
  }
  [[nodiscard]] std::uint64_t at_end(const char* figure) const { return last_.at(figure).get<std::uint64_t>(); }

 private:
  const nlohmann::json& first_;
  const nlohmann::json& last_;
  std::size_t iterations_;
};

// What the library says of its plans. Times are the planner's real ones: the only figures that differ between runs.
void add_planning(Json& result, const std::vector<nlohmann::json>& report) {
  double plan_s = 0;
  std::uint64_t launches = 0;
  result["plan_s"] = nullptr;
  result["plans"] = 0;
  result["plan_evaluations"] = 0;
  result["iterations_to_plan"] = nullptr;
  for (const nlohmann::json& record : report) {
    if (record.at("kind") == "start") result["budget_bytes"] = record.at("budget_bytes");
    if (record.at("kind") != "iteration") continue;
    plan_s += 1e-9 * record.at("plan_ns").get<double>();
    result["plans"] = result["plans"].get<std::uint64_t>() + record.at("plans").get<std::uint64_t>();
    result["plan_evaluations"] =
        result["plan_evaluations"].get<std::uint64_t>() + record.at("plan_evaluations").get<std::uint64_t>();
    const auto period = record.at("period_launches").get<std::uint64_t>();
    if (record.at("planned_launches") > 0 && period > 0 && result["iterations_to_plan"].is_null())
      result["iterations_to_plan"] = (launches + period / 2) / period;
    launches += record.at("launches").get<std::uint64_t>();
  }
  result["plan_s"] = plan_s;
}

// A bounds file is what scripts/plan_table keeps: cell -> what scripts/lower_bound printed.
void add_bound(Json& result, const ReplayOptions& options) {
  std::ifstream file(*options.bounds);
  const Json bounds = Json::parse(file, nullptr, false);
  if (!bounds.is_object()) throw std::runtime_error(*options.bounds + ": is no JSON object of bounds");
  const simgpu::Profile profile =
      simgpu::load_profile(options.device.find('/') != std::string::npos
                               ? options.device
                               : std::string(REPLAY_PROFILE_DIR "/") + options.device + ".profile");
  const std::string trace = std::filesystem::path(options.trace).filename().string();
  const std::string cell =
      fmt::format("{} {} {:g} GB/s {:g}x", trace.substr(0, trace.find('.')), options.field,
                  std::max(profile.link_h2d_gbps, profile.link_d2h_gbps), options.ratio.value_or(0));
  const auto bound = bounds.find(cell);
  const bool is_known = bound != bounds.end() && bound->contains("bound_s");
  result["bound_s"] = is_known ? bound->at("bound_s") : Json(nullptr);
  result["pct_bound"] =
      is_known ? Json(100 * bound->at("bound_s").get<double>() / result["steady_iteration_s"].get<double>())
               : Json(nullptr);
}

Json result_of(const ReplayOptions& options, const Trace& trace, const std::vector<nlohmann::json>& rows,
               const std::vector<nlohmann::json>& report) {
  const Steady steady(rows);
  const double steady_s = 1e-9 * static_cast<double>(steady["now_ns"]);
  const double ideal_s = 1e-9 * static_cast<double>(trace.compute_ns());
  Json result = {
      {"schema", 1},
      {"policy", options.policy},
      {"device", options.device},
      {"trace", std::filesystem::path(options.trace).filename().string()},
      {"field", options.field},
      {"iterations", options.iterations},
      {"peak_live_bytes", trace.peak_live_bytes()},
      {"budget_bytes", nullptr},
      {"launches", steady["kernels"]},
      {"steady_iteration_s", steady_s},
      {"ideal_s", ideal_s},
      {"pct_ideal", 100 * ideal_s / steady_s},
      {"stall_s", steady_s - ideal_s},
      {"h2d_bytes", steady["h2d_user_bytes"] + steady["h2d_demand_bytes"] + steady["h2d_coherence_bytes"] +
                        steady["h2d_copy_bytes"] + steady["h2d_remote_bytes"]},
      {"h2d_prefetch_bytes", steady["h2d_user_bytes"]},
      {"h2d_demand_bytes", steady["h2d_demand_bytes"]},
      {"d2h_bytes", steady["d2h_user_bytes"] + steady["d2h_eviction_bytes"] + steady["d2h_coherence_bytes"] +
                        steady["d2h_copy_bytes"] + steady["d2h_remote_bytes"]},
      {"d2h_demote_bytes", steady["d2h_user_bytes"]},
      {"d2h_eviction_bytes", steady["d2h_eviction_bytes"]},
      {"discarded_bytes", steady["discarded_bytes"]},
      {"dropped_bytes", steady["dropped_bytes"]},
      {"fault_groups", steady["fault_groups"]},
      {"peak_resident_bytes", steady.at_end("peak_resident_bytes")},
  };
  add_planning(result, report);
  if (options.bounds) add_bound(result, options);
  return result;
}

std::string readable(const std::string& key, const nlohmann::ordered_json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (key.ends_with("_bytes")) return fmt::format("{:.3f} GiB", value.get<double>() / 0x1p30);
  if (key.ends_with("_s")) return fmt::format("{:.6f} s", value.get<double>());
  if (key.starts_with("pct_")) return fmt::format("{:.1f} %", value.get<double>());
  return value.dump();
}

void print(const ReplayOptions& options, const Json& result) {
  if (options.as_json) {
    std::cout << result.dump() << '\n';
    return;
  }
  for (const auto& [key, value] : result.items()) std::cout << fmt::format("{:<20} {}\n", key, readable(key, value));
}

void run(const ReplayOptions& options, int argc, char** argv) {
  const Trace trace = read_trace(options.trace, options.field);
  const support::TempDir folder;
  support::Guest guest{.program = std::filesystem::read_symlink("/proc/self/exe"),
                       .args = {argv + 1, argv + argc},
                       .environment = guest_environment(options, trace, folder.file("report")),
                       .timeout = std::chrono::hours(1)};
  guest.args.emplace_back("--guest");
  const support::GuestResult played = support::run_guest(guest);
  std::cerr << played.err;
  if (!played.succeeded()) throw std::runtime_error("the trace could not be played to its end");
  print(options, result_of(options, trace, rows_of(played.out), support::read_json_lines(folder.file("report"))));
}

}  // namespace
}  // namespace hmshim::bench

int main(int argc, char** argv) {
  using namespace hmshim::bench;
  try {
    const ReplayOptions options = parse_replay_options(argc, argv);
    if (options.is_guest) {
      play_as_guest(options);
    } else {
      run(options, argc, argv);
    }
  } catch (const std::invalid_argument& error) {
    std::cerr << "error: " << error.what() << '\n' << kReplayUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
