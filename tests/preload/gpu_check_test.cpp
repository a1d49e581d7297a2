// gpu-check and gpu-calibrate on the simulated GPU: all of it to its end, steps that misbehave, what it refuses, and
// whether what the probe measures is what the model means.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kPython = "/usr/bin/python3";  // without frameworks

Environment simulated(const Environment& extra = {}) {
  std::string kernels = build_dir() / "gpu" / "libprobe_kernels.so";
  for (const char* guest : {"sum", "layers"}) {
    kernels += ":" + (build_dir() / "guests" / ("lib" + std::string(guest) + "_kernels.so")).string();
  }
  Environment environment = on_simgpu({{"SIMGPU_CAPACITY", "512MiB"}, {"SIMGPU_KERNELS", kernels}});
  for (const auto& [name, value] : extra) environment[name] = value;
  return environment;
}

/// One run of gpu-check: how it ended, and the records it left by step.
struct Checked {
  GuestResult result;
  std::map<std::string, json> steps;
  fs::path folder;

  [[nodiscard]] std::string outcome(const std::string& step) const {
    const auto found = steps.find(step);
    return found == steps.end() ? "no record" : found->second.at("outcome").get<std::string>();
  }
  [[nodiscard]] std::string why(const std::string& step) const {
    const auto found = steps.find(step);
    return found == steps.end() ? "no record" : found->second.value("why", "");
  }
};

Checked check(const TempDir& folder, const Environment& environment, std::vector<std::string> args = {},
              const fs::path& bundle = build_dir() / "gpu-check") {
  Checked checked;
  checked.folder = folder.path() / "results";
  args.insert(args.begin(), {bundle / "gpu-check", "--python", kPython, "--out", checked.folder});
  checked.result =
      run_guest({.program = kPython, .args = args, .environment = environment, .timeout = std::chrono::seconds(200)});
  if (fs::exists(checked.folder / "results.jsonl")) {
    for (const json& record : read_json_lines(checked.folder / "results.jsonl"))
      checked.steps[record.at("step")] = record;
  }
  return checked;
}

/// A bundle like the built one, in which some files are others.
fs::path bundle_with(const TempDir& folder, const std::map<std::string, std::string>& scripts) {
  const fs::path bundle = folder.path() / "bundle";
  fs::copy(build_dir() / "gpu-check", bundle, fs::copy_options::recursive);
  for (const auto& [name, script] : scripts) {
    fs::rename(bundle / name, bundle / (name + ".real"));
    write_file(bundle / name, "#!/bin/sh\n" + script);
    fs::permissions(bundle / name, fs::perms::owner_all);
  }
  return bundle;
}

// ---- to the end ----

TEST(GpuCheck, compares_every_way_in_and_names_what_this_machine_lacks) {
  const TempDir folder;
  const Checked checked = check(folder, simulated(), {"--stages", "a"});
  EXPECT_EQ(checked.result.exit_status, 0) << checked.result.describe();
  for (const char* step :
       {"device", "safety.limit_in_library", "safety.a", "a.fits", "a.launch_args", "a.streams", "a.capture",
        "a.beside_capture", "a.pointers", "a.pitch", "a.managed", "a.escapes", "a.copies", "a.graphs",
        "a.capture_beside", "a.tensor_maps", "a.ipc_of_excluded", "a.ipc_of_managed"})
    EXPECT_EQ(checked.outcome(step), "passed") << step << ": " << checked.why(step);
  for (const char* step : {"a.pytorch", "a.cublas", "a.cudnn", "a.nccl"})
    EXPECT_EQ(checked.why(step), std::string(kPython) + " has no torch") << step;
  for (const char* module : {"triton", "cupy", "jax"})
    EXPECT_EQ(checked.why(std::string("a.") + module), std::string(kPython) + " has no " + module);
  // NVIDIA's own runtime starts on NVIDIA's driver only.
  EXPECT_EQ(checked.outcome("a.fits_static_runtime"), "skipped");
  EXPECT_EQ(checked.steps.at("device").at("figures").at("is_simulated"), true);
}

TEST(GpuCheck, runs_each_policy_and_budget_within_its_limits) {
  const TempDir folder;
  const Checked checked = check(folder, simulated(), {"--stages", "d"});
  EXPECT_EQ(checked.result.exit_status, 0) << checked.result.describe();
  EXPECT_EQ(checked.why("d.gpt2"), std::string(kPython) + " has no torch");
  EXPECT_EQ(checked.why("d.resnet"), std::string(kPython) + " has no torch");
  EXPECT_EQ(checked.why("d.layers.learned.half.counted"), "the simulated GPU has no CUPTI");
  EXPECT_EQ(checked.outcome("d.layers.none"), "passed") << checked.why("d.layers.none");

  const json& device = checked.steps.at("device").at("figures");
  const auto limit = device.at("managed_limit_bytes").get<double>();
  EXPECT_LE(limit, 0.5 * device.at("free_bytes").get<double>());
  for (const char* policy : {"learned", "on_demand", "next_touch"}) {
    for (const char* budget : {"half", "third"}) {
      const std::string cell = std::string("layers.") + policy + "." + budget;
      ASSERT_EQ(checked.outcome("d." + cell), "passed") << checked.why("d." + cell);
      EXPECT_EQ(checked.outcome("b." + cell), "passed") << checked.why("b." + cell);
      const json& figures = checked.steps.at("d." + cell).at("figures");
      EXPECT_LE(figures.at("budget_bytes").get<double>(), 0.5 * limit);
      EXPECT_GT(figures.at("iteration_s"), checked.steps.at("d.layers.none").at("figures").at("iteration_s"));
      EXPECT_GT(figures.at("h2d_bytes").get<double>(), 0) << cell;
    }
  }

  int files = 0;
  for (const auto& file : fs::directory_iterator(checked.folder)) {
    ++files;
    EXPECT_LE(fs::file_size(file), 16U << 20) << file;
  }
  EXPECT_LE(files, 8);
  EXPECT_THAT(read_file(checked.folder / "summary.txt"), HasSubstr("d.layers.learned.half"));
  EXPECT_THAT(read_file(checked.folder / "log.txt"), HasSubstr("weights "));
}

// ---- steps that misbehave ----

// A dead child whose new parent has not asked for it yet does not run.
bool is_running(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string stat;
  if (!std::getline(file, stat)) return false;
  return stat.find(") Z ") == std::string::npos && stat.find(") X ") == std::string::npos;
}

TEST(GpuCheck, a_step_that_fails_hangs_or_crashes_costs_only_itself) {
  const TempDir folder;
  const std::string child = folder.file("child");
  const fs::path bundle =
      bundle_with(folder, {{"bin/fits", "exec \"$0.real\" \"$@\" | sed \"s/a 41/a ${LD_PRELOAD:+4}41/\""},
                           {"bin/launch_args", "[ -z \"$LD_PRELOAD\" ] || kill -SEGV $$\nexec \"$0.real\" \"$@\""},
                           // Its child ignores a polite end, and would be seen if it outlived the step.
                           {"bin/streams", "trap '' TERM HUP INT\nsleep 600 & echo $! >" + child + "; wait"},
                           {"bin/capture", "[ -z \"$LD_PRELOAD\" ] || exit 5\nexec \"$0.real\" \"$@\""}});
  const Checked checked = check(folder, simulated(), {"--stages", "a", "--time-scale", "0.2"}, bundle);
  EXPECT_EQ(checked.result.exit_status, 1) << checked.result.describe();
  EXPECT_EQ(checked.outcome("a.fits"), "failed");
  EXPECT_THAT(checked.why("a.fits"), HasSubstr("without the library 'a 41', with it 'a 441'"));
  EXPECT_EQ(checked.outcome("a.launch_args"), "failed");
  EXPECT_THAT(checked.why("a.launch_args"), HasSubstr("SIGSEGV"));
  EXPECT_EQ(checked.outcome("a.streams"), "failed");
  EXPECT_THAT(checked.why("a.streams"), HasSubstr("killed at its time limit"));
  EXPECT_EQ(checked.outcome("a.capture"), "failed");
  EXPECT_THAT(checked.why("a.capture"), HasSubstr("status 5"));
  EXPECT_EQ(checked.outcome("a.pointers"), "passed") << checked.why("a.pointers");
  EXPECT_EQ(checked.outcome("a.ipc_of_managed"), "passed") << checked.why("a.ipc_of_managed");
  EXPECT_THAT(read_file(checked.folder / "summary.txt"), HasSubstr("4 failed"));
  std::string pid = read_file(child);
  pid.erase(pid.find_last_not_of('\n') + 1);
  EXPECT_FALSE(is_running(pid)) << "a child outlived its step";
}

TEST(GpuCheck, answers_of_a_probe_that_hangs_are_kept) {
  const TempDir folder;
  const fs::path bundle =
      bundle_with(folder, {{"bin/probe", "timeout 5 \"$0.real\" --only calls >/dev/null\nsleep 600"}});
  const Checked checked = check(folder, simulated(), {"--stages", "c", "--time-scale", "0.06"}, bundle);
  EXPECT_EQ(checked.result.exit_status, 1) << checked.result.describe();
  EXPECT_EQ(checked.outcome("c.probe"), "failed");
  EXPECT_THAT(checked.why("c.probe"), HasSubstr("killed at its time limit"));
  EXPECT_EQ(checked.outcome("c.probe.calls"), "passed");
  EXPECT_EQ(checked.steps.at("c.probe.calls").at("figures").at("launches_until_blocked"), 1024);
}

TEST(GpuCheck, says_which_steps_found_no_time) {
  const TempDir folder;
  const Checked checked = check(folder, simulated(), {"--total-s", "3"});
  EXPECT_EQ(checked.result.exit_status, 1) << checked.result.describe();
  EXPECT_EQ(checked.outcome("safety.d"), "not_started");
  EXPECT_EQ(checked.why("safety.d"), "no time left");
  EXPECT_LT(checked.result.seconds, 10);
}

// ---- what is not safe ----

TEST(GpuCheck, refuses_a_card_with_too_little_free_memory) {
  const TempDir folder;
  const Checked checked = check(folder, simulated({{"SIMGPU_CAPACITY", "64MiB"}}));
  EXPECT_EQ(checked.result.exit_status, 3) << checked.result.describe();
  EXPECT_EQ(checked.outcome("device"), "refused");
  EXPECT_THAT(checked.why("device"), HasSubstr("64 MiB are free on the device"));
  EXPECT_EQ(checked.steps.size(), 1U) << "nothing else may run";
}

TEST(GpuCheck, is_skipped_without_a_gpu_whose_memory_can_be_managed) {
  for (const Environment& environment :
       {simulated({{"SIMGPU_DEVICES", "0"}}), simulated({{"SIMGPU_ATTRIBUTES", "89=0"}}),
        simulated({{"SIMGPU_ATTRIBUTES", "18=1"}}), simulated({{"LD_LIBRARY_PATH", ""}})}) {
    const TempDir folder;
    const Checked checked = check(folder, environment);
    EXPECT_EQ(checked.result.exit_status, 77) << checked.result.describe();
    EXPECT_EQ(checked.outcome("device"), "skipped");
    EXPECT_NE(checked.why("device"), "");
    EXPECT_EQ(checked.steps.size(), 1U) << "nothing else may run";
  }
}

// That is no machine without a GPU: it must not look like one.
TEST(GpuCheck, fails_where_the_driver_is_broken_or_does_not_answer) {
  const TempDir folder;
  const Checked broken = check(folder, simulated({{"SIMGPU_FAIL", "cuInit:1:CUDA_ERROR_UNKNOWN"}}));
  EXPECT_EQ(broken.result.exit_status, 1) << broken.result.describe();
  EXPECT_THAT(broken.why("device"), HasSubstr("the driver does not work: cuInit fails with error 999"));
  const std::string never_written = folder.file("fifo");
  ASSERT_EQ(mkfifo(never_written.c_str(), 0600), 0);
  const Checked hung = check(folder, simulated({{"SIMGPU_PROFILE", never_written}}), {"--time-scale", "0.04"});
  EXPECT_EQ(hung.result.exit_status, 1) << hung.result.describe();
  EXPECT_THAT(hung.why("device"), HasSubstr("killed at its time limit"));
  EXPECT_EQ(hung.steps.size(), 1U) << "nothing else may run";
}

// Preloads something that is not the library: nothing would stop the guests.
TEST(GpuCheck, refuses_to_use_a_library_that_was_not_seen_to_keep_its_limit) {
  const TempDir folder;
  const fs::path bundle = bundle_with(folder, {});
  fs::copy(build_dir() / "guests" / "libasks_preload.so", bundle / "lib" / "libhmshim.so",
           fs::copy_options::overwrite_existing);
  const Checked checked = check(folder, simulated(), {"--stages", "ad"}, bundle);
  EXPECT_EQ(checked.result.exit_status, 1) << checked.result.describe();
  EXPECT_EQ(checked.outcome("safety.limit_in_library"), "failed");
  for (const char* step : {"a.fits", "a.pytorch", "d.layers.on_demand.half", "d.layers.learned.third"}) {
    EXPECT_EQ(checked.outcome(step), "refused") << step;
    EXPECT_EQ(checked.why(step), "the library was not seen to keep its limit");
  }
}

// Somebody else takes the card while the first stage runs: the device answers from its profile, which a guest rewrites.
TEST(GpuCheck, stops_when_others_take_the_memory_meanwhile) {
  const TempDir folder;
  const std::string profile = folder.file("card.profile");
  const std::string original = read_file(source_dir() / "tests/simgpu/profiles/v100-32g-pcie3.profile");
  write_file(profile, std::regex_replace(original, std::regex("capacity = 32GiB"), "capacity = 512MiB"));
  const fs::path bundle = bundle_with(folder, {{"bin/comm", "sed -i 's/^capacity = 512MiB/capacity = 256MiB/' " +
                                                                profile + "\nexec \"$0.real\" \"$@\""}});
  Environment environment = simulated({{"SIMGPU_PROFILE", profile}});
  environment["SIMGPU_CAPACITY"] = std::nullopt;
  const Checked checked = check(folder, environment, {"--stages", "ad"}, bundle);
  EXPECT_EQ(checked.result.exit_status, 1) << checked.result.describe();
  EXPECT_EQ(checked.outcome("safety.a"), "refused") << "the frameworks' turn comes later";
  EXPECT_EQ(checked.outcome("safety.d"), "refused");
  EXPECT_THAT(checked.why("safety.d"), HasSubstr("only 256 MiB are free now"));
  EXPECT_EQ(checked.outcome("d.layers.none"), "no record");
}

// ---- calibration ----

std::map<std::string, std::string> settings_of(const fs::path& profile) {
  std::map<std::string, std::string> settings;
  const std::regex setting(R"((\w+)\s*=\s*(.*?)\s*#.*)");
  std::ifstream file(profile);
  for (std::string line; std::getline(file, line);) {
    std::smatch match;
    if (std::regex_match(line, match, setting)) settings[match[1]] = match[2];
  }
  return settings;
}

GuestResult calibrate(const fs::path& results, const fs::path& profile, const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {source_dir() / "scripts" / "gpu-calibrate",
                                   results,
                                   "--base",
                                   "v100-32g-pcie3",
                                   "--out",
                                   profile,
                                   "--build",
                                   build_dir()};
  args.insert(args.end(), more.begin(), more.end());
  return run_guest({.program = kPython, .args = args, .timeout = std::chrono::seconds(100)});
}

// The proof that the probe measures what the model means: from the answers of a simulated card alone, and another
// card's profile for the rest, its own profile comes back.
TEST(GpuCalibrate, gives_back_the_profile_of_the_simulated_card_and_its_times) {
  // Its link is fast enough for the host's part of a demote to show: on a slower one the copy hides it.
  const std::string card = "rtx5080-16g-pcie5";
  const TempDir folder;
  const Checked checked = check(folder, simulated({{"SIMGPU_PROFILE", card}}), {"--stages", "cd"});
  ASSERT_EQ(checked.result.exit_status, 0) << checked.result.describe();
  const fs::path profile = folder.path() / "measured.profile";
  const GuestResult result = calibrate(checked.folder, profile, {"--compare", folder.file("comparison.json")});
  ASSERT_TRUE(result.succeeded()) << result.describe();

  const auto expected = settings_of(source_dir() / "tests/simgpu/profiles" / (card + ".profile"));
  const auto base = settings_of(source_dir() / "tests/simgpu/profiles" / "v100-32g-pcie3.profile");
  const auto measured = settings_of(profile);
  EXPECT_EQ(measured.size(), expected.size());
  // Of the machine that runs the test; a full device is needed to see them; or the driver's own constants.
  const std::vector<std::string> not_measured = {"capacity",           "host_ram",   "eviction_duplex",
                                                 "fault_batch_faults", "demote_run", "evict_block_ns",
                                                 "steal_unused_ns"};
  for (const auto& [key, value] : expected) {
    ASSERT_TRUE(measured.contains(key)) << key;
    if (std::find(not_measured.begin(), not_measured.end(), key) != not_measured.end()) continue;
    if (key == "link_curve") continue;  // at other points: compared below
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (*end != '\0') {
      EXPECT_EQ(measured.at(key), value) << key;
    } else {
      EXPECT_NEAR(std::stod(measured.at(key)), number, std::abs(0.02 * number)) << key;
    }
  }
  for (const auto& [size, share] :
       std::map<std::string, double>{{"4KiB", 0.1807}, {"64KiB", 0.8656}, {"2MiB", 0.9957}}) {
    std::smatch match;
    const std::string& curve = measured.at("link_curve");
    ASSERT_TRUE(std::regex_search(curve, match, std::regex("(^| )" + size + ":([0-9.]+)"))) << curve;
    EXPECT_NEAR(std::stod(match[2]), share, 0.02 * share) << size;
  }
  EXPECT_THAT(read_file(profile), HasSubstr("# measured: migration, RTX-5080-16GB (simulated), driver 13.0"));
  EXPECT_EQ(measured.at("evict_block_ns"), base.at("evict_block_ns"));
  EXPECT_THAT(read_file(profile), HasSubstr("# not measured. v100-32g-pcie3: "));

  // What the probe is told on the profile, it was told by the card; and the recorded trace takes the time there that
  // the program took, under each policy and budget.
  const json comparison = json::parse(read_file(folder.file("comparison.json")));
  EXPECT_GT(comparison.at("probe").size(), 400U);
  for (const json& row : comparison.at("probe")) {
    if (row.at("hardware").get<double>() < 1) continue;  // rounded to more than a per cent
    EXPECT_NEAR(row.at("deviation_pct").get<double>(), 0, 5) << row;
  }
  std::size_t cells = 0;
  for (const json& row : comparison.at("policies")) {
    if (row.value("figure", "") != "iteration_s") continue;
    ++cells;
    // A copy of four bytes touches a whole tensor in a trace; next_touch fetches ahead of that.
    const double most_pct = row.at("policy") == "next_touch" ? 20 : 5;
    EXPECT_NEAR(row.at("deviation_pct").get<double>(), 0, most_pct) << row;
  }
  EXPECT_EQ(cells, 7U) << comparison.at("policies");
}

TEST(GpuCalibrate, keeps_the_base_where_a_question_has_no_answer) {
  const TempDir folder;
  write_file(folder.file("results.jsonl"),
             R"({"step":"c.probe.calls","figures":{"outcome":"killed at its time limit","launch_us":9}})"
             "\n"
             R"({"step":"c.probe.duplex","figures":{"outcome":"answered","idle_streams_overlap":0.1}})"
             "\n");
  const GuestResult result = calibrate(folder.path(), folder.file("p.profile"));
  ASSERT_TRUE(result.succeeded()) << result.describe();
  const auto measured = settings_of(folder.file("p.profile"));
  EXPECT_EQ(measured.at("planned_duplex"), "serialised");
  EXPECT_EQ(measured.at("launch_host_ns"), "2500");
}

TEST(GpuCalibrate, says_what_is_wrong_with_its_input) {
  const TempDir folder;
  const GuestResult missing = calibrate(folder.file("nowhere"), folder.file("p.profile"));
  EXPECT_EQ(missing.exit_status, 1);
  EXPECT_THAT(missing.err, HasSubstr("nowhere: No such file"));
  write_file(folder.file("results.jsonl"), "{\"step\":\"device\",\"figures\":{}}\n");
  const GuestResult empty = calibrate(folder.path(), folder.file("p.profile"));
  EXPECT_EQ(empty.exit_status, 1);
  EXPECT_THAT(empty.err, HasSubstr("has no answers of the probe"));
}

// ---- the probe alone ----

TEST(Probe, refuses_arguments_that_make_no_sense) {
  const auto probe = [](std::vector<std::string> args) {
    return run_guest({.program = build_dir() / "gpu" / "probe", .args = std::move(args), .environment = simulated()});
  };
  EXPECT_EQ(probe({"--only", "nothing"}).exit_status, 2);
  EXPECT_THAT(probe({"--only", "nothing"}).err, HasSubstr("there is no question 'nothing'"));
  EXPECT_EQ(probe({"--time-limit", "soon"}).exit_status, 2);
  EXPECT_EQ(probe({"--managed-limit"}).exit_status, 2);
}

TEST(Probe, keeps_its_managed_memory_within_the_limit_it_is_given) {
  const TempDir folder;
  const GuestResult result = run_guest({.program = build_dir() / "gpu" / "probe",
                                        .args = {"--only", "migration,advice,faults", "--managed-limit", "16777216"},
                                        .environment = simulated()});
  EXPECT_EQ(result.exit_status, 0) << result.describe();
  const json answers = json::parse(result.out);
  EXPECT_EQ(answers.at("device").at("managed_limit_bytes"), 16777216);
  EXPECT_EQ(answers.at("migration").at("prefetch_call_us_by_blocks").back().at(0), 4) << "8 MiB beside as much again";
}

}  // namespace
}  // namespace hmshim::support
