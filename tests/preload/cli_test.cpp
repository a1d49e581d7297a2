// scripts/hmshim as its user sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/guest_process.hpp"
#include "tests/support/size_cases.hpp"

namespace hmshim::support {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string library() { return (build_dir() / "libhmshim.so").string(); }

GuestResult hmshim(const std::vector<std::string>& args, Environment environment = {}) {
  environment.emplace("HMSHIM_LIB", library());
  return run_guest({.program = source_dir() / "scripts" / "hmshim", .args = args, .environment = environment});
}

// Python code with scripts/hmshim loaded as the module `hmshim`.
GuestResult with_module(const std::string& code, const std::vector<std::string>& args = {}) {
  const std::string load =
      "import sys\n"
      "from importlib.machinery import SourceFileLoader\n"
      "sys.dont_write_bytecode = True\n"
      "hmshim = SourceFileLoader('hmshim', sys.argv[1]).load_module()\n";
  std::vector<std::string> all{"-W", "ignore", "-c", load + code, source_dir() / "scripts" / "hmshim"};
  all.insert(all.end(), args.begin(), args.end());
  return run_guest({.program = "/usr/bin/python3", .args = all, .environment = {}});
}

int lines_in(const std::string& text) { return static_cast<int>(std::ranges::count(text, '\n')); }

// ---- run ----

TEST(HmshimRun, passes_the_exit_status_and_both_outputs_through) {
  const auto result = hmshim({"run", "--", "sh", "-c", "echo to stdout; echo to stderr >&2; exit 37"});
  EXPECT_EQ(result.exit_status, 37) << result.describe();
  EXPECT_EQ(result.out, "to stdout\n");
  EXPECT_EQ(result.err, "to stderr\n");
}

TEST(HmshimRun, a_signal_ends_the_program_itself) {
  EXPECT_EQ(hmshim({"run", "sh", "-c", "kill -TERM $$"}).signal, SIGTERM);
  // Python ignores SIGPIPE for itself; the program must not inherit that.
  EXPECT_EQ(hmshim({"run", "sh", "-c", "kill -PIPE $$"}).signal, SIGPIPE);
}

TEST(HmshimRun, preloads_the_library_once_and_ahead_of_the_others) {
  const std::vector<std::string> print{"run", "sh", "-c", "printf %s \"$LD_PRELOAD\""};
  EXPECT_EQ(hmshim(print).out, library());
  EXPECT_EQ(hmshim(print, {{"LD_PRELOAD", library()}}).out, library());
  EXPECT_EQ(hmshim(print, {{"LD_PRELOAD", "libm.so.6:" + library() + " libdl.so.2"}}).out,
            library() + " libm.so.6 libdl.so.2");
}

TEST(HmshimRun, leaves_a_sanitizer_runtime_first) {
  const auto result =
      with_module("print(hmshim.compose_preload('/x/libhmshim.so', ['libm.so.6', '/lib/libasan.so.8']))");
  EXPECT_EQ(result.out, "/lib/libasan.so.8 /x/libhmshim.so libm.so.6\n") << result.describe();
}

TEST(HmshimRun, flags_become_the_librarys_variables) {
  const auto result = hmshim({"run", "--device-budget", "8G", "--managed-limit=50%", "--summary", "env"});
  EXPECT_THAT(result.out, HasSubstr("HMSHIM_DEVICE_BUDGET=8G\n")) << result.describe();
  EXPECT_THAT(result.out, HasSubstr("HMSHIM_MANAGED_LIMIT=50%\n"));
  EXPECT_THAT(result.out, HasSubstr("HMSHIM_SUMMARY=on\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("HMSHIM_LIB="))) << "the library would call it unknown";
}

TEST(HmshimRun, a_switch_takes_its_value_either_way) {
  EXPECT_THAT(hmshim({"run", "--discard", "off", "env"}).out, HasSubstr("HMSHIM_DISCARD=off\n"));
  EXPECT_THAT(hmshim({"run", "--discard=off", "env"}).out, HasSubstr("HMSHIM_DISCARD=off\n"));
  EXPECT_THAT(hmshim({"run", "--summary", "env"}).out, HasSubstr("HMSHIM_SUMMARY=on\n"));
}

TEST(HmshimRun, every_word_of_the_options_grammar_is_known) {
  EXPECT_THAT(hmshim({"run", "--exclude", "libmine,libother.so.2", "env"}).out,
              HasSubstr("HMSHIM_EXCLUDE=libmine,libother.so.2\n"));
  const auto unknown = with_module(
      "print([w for o in hmshim.read_options() for w in o.values.split('|') if w.isupper() and w not in "
      "hmshim.DESCRIPTIONS])");
  EXPECT_EQ(unknown.out, "[]\n") << unknown.describe();
}

TEST(HmshimRun, arguments_of_the_program_are_the_programs) {
  EXPECT_EQ(hmshim({"run", "echo", "--summary", "--", "-x"}).out, "--summary -- -x\n");
  EXPECT_EQ(hmshim({"run", "--", "echo", "run"}).out, "run\n");
}

TEST(HmshimRun, refuses_what_makes_no_sense_before_anything_starts) {
  const struct {
    std::vector<std::string> args;
    Environment environment;
    std::string complaint;
  } cases[] = {
      {{"run", "--device-budget", "08G", "echo", "started"}, {}, "--device-budget 08G makes no sense: give a size"},
      {{"run", "--device-budget=", "echo", "started"}, {}, "makes no sense"},
      {{"run", "--summary=2", "echo", "started"}, {}, "--summary 2 makes no sense: give on, off"},
      {{"run", "--report", "a%x", "echo", "started"}, {}, "%p is the process id"},
      {{"run", "--exclude", "/usr/lib/libmine.so", "echo", "started"}, {}, "give file names of libraries"},
      {{"run", "--policy", "magic", "echo", "started"}, {}, "give on_demand or "},
      {{"run", "--device-budgt=8G", "echo", "started"},
       {},
       "unknown option --device-budgt; did you mean --device-budget?"},
      {{"run", "echo", "started"}, {{"HMSHIM_MEMINFO", "all\nof it"}}, "HMSHIM_MEMINFO=all?of it makes no sense"},
      {{"run", "echo", "started"}, {{"HMSHIM_LIB", "/nonexistent.so"}}, "HMSHIM_LIB=/nonexistent.so is not a file"},
      {{"run", "--report"}, {}, "--report needs a value"},
      {{"run", "--report", "--", "echo", "started"}, {}, "--report needs a value"},
      {{"run", "--summary"}, {}, "no program to run"},
  };
  for (const auto& [args, environment, complaint] : cases) {
    const auto result = hmshim(args, environment);
    EXPECT_EQ(result.exit_status, 2) << result.describe();
    EXPECT_THAT(result.err, AllOf(StartsWith("hmshim: "), HasSubstr(complaint)));
    EXPECT_EQ(lines_in(result.err), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST(HmshimRun, says_how_to_get_by_where_LD_PRELOAD_cannot_hold_the_path) {
  const TempDir folder;
  std::filesystem::create_directory(folder.path() / "with space");
  const std::string copy = folder.file("with space/libhmshim.so");
  std::filesystem::copy_file(library(), copy);
  const auto refused = hmshim({"run", "echo", "started"}, {{"HMSHIM_LIB", copy}});
  EXPECT_EQ(refused.exit_status, 2) << refused.describe();
  EXPECT_THAT(refused.err, AllOf(HasSubstr(copy), HasSubstr("symbolic link")));
  EXPECT_EQ(refused.out, "");

  const std::string link = folder.file("link.so");
  std::filesystem::create_symlink(copy, link);
  const auto linked = hmshim({"run", "sh", "-c", "printf %s \"$LD_PRELOAD\""}, {{"HMSHIM_LIB", link}});
  EXPECT_EQ(linked.out, link) << linked.describe();
  EXPECT_EQ(linked.err, "");
}

TEST(HmshimRun, a_program_that_cannot_run_has_the_shells_status) {
  EXPECT_EQ(hmshim({"run", "/nonexistent/program"}).exit_status, 127);
  const TempDir folder;
  write_file(folder.file("plain"), "not a program");
  const auto result = hmshim({"run", folder.file("plain")});
  EXPECT_EQ(result.exit_status, 126) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("cannot run " + folder.file("plain")));
}

TEST(HmshimRun, help_lists_every_option_of_the_table) {
  const auto result = hmshim({"run", "--help"});
  EXPECT_EQ(result.exit_status, 0);
  int options = 0;
#define OPTION(field, name, type, default_value, values, sentence) \
  EXPECT_THAT(result.out, HasSubstr(name));                        \
  EXPECT_THAT(result.out, HasSubstr(sentence));                    \
  ++options;
#include "interpose/options.def"
#undef OPTION
  EXPECT_GT(options, 0);
}

TEST(HmshimRun, reads_sizes_as_the_library_does) {
  const std::vector<SizeCase> cases = size_cases();
  std::vector<std::string> texts;
  for (const SizeCase& each : cases) texts.push_back(each.text);
  const auto result = with_module(
      "for text in sys.argv[2:]:\n"
      "  valid = hmshim.is_valid('SIZE|PERCENT|none', text)\n"
      "  size = hmshim.parse_size(text)\n"
      "  print(text if valid and size is None else size if valid else 'junk')\n",
      texts);
  std::istringstream answers(result.out);
  for (const SizeCase& each : cases) {
    std::string answer;
    ASSERT_TRUE(std::getline(answers, answer)) << result.describe();
    EXPECT_EQ(answer, each.meaning) << "'" << each.text << "'";
  }
}

// ---- report ----

// A run of the training program that migrates.
std::string report_of_training(const TempDir& folder) {
  const std::string path = folder.file("report.jsonl");
  const auto result =
      run_guest({.program = guest_program("mlp"),
                 .args = {"--layers", "4", "--width", "1024", "--iterations", "4"},
                 .environment = on_simgpu_with_shim({{"SIMGPU_CAPACITY", "32MiB"},
                                                     {"SIMGPU_KERNELS", build_dir() / "guests" / "libmlp_kernels.so"},
                                                     {"HMSHIM_REPORT", path}})});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  return path;
}

TEST(HmshimReport, shows_iterations_totals_calls_and_allocations) {
  const TempDir folder;
  const auto result = hmshim({"report", report_of_training(folder)});
  EXPECT_EQ(result.exit_status, 0) << result.describe();
  EXPECT_EQ(result.err, "");
#define COUNTER(name, unit, heading, sentence) EXPECT_THAT(result.out, HasSubstr(heading));
#include "interpose/counters.def"
#undef COUNTER
  EXPECT_THAT(result.out, HasSubstr("policy on_demand"));
  EXPECT_THAT(result.out, HasSubstr("0 in all"));
  EXPECT_THAT(result.out, HasSubstr("cuMemAlloc_v2 "));
  EXPECT_THAT(result.out, HasSubstr("cuLaunchKernel "));
  EXPECT_THAT(result.out, HasSubstr("ended active"));
  EXPECT_THAT(result.out, Not(HasSubstr(" 0 managed")));
}

TEST(HmshimReport, names_a_record_that_is_not_whole) {
  const TempDir folder;
  for (const char* line : {R"({"schema":1,"pid":1})", R"({"schema":1,"pid":1,"kind":"iteration"})"}) {
    write_file(folder.file("report"), std::string(line) + "\n");
    const auto result = hmshim({"report", folder.file("report")});
    EXPECT_EQ(result.exit_status, 1) << result.describe();
    EXPECT_EQ(lines_in(result.err), 1) << result.describe();
    EXPECT_THAT(result.err, HasSubstr("whole"));
  }
}

TEST(HmshimCommand, tells_its_version_its_use_and_what_it_does_not_know) {
  EXPECT_EQ(hmshim({"--version"}).out, "hmshim " HMSHIM_VERSION "\n");
  EXPECT_THAT(hmshim({"report", "--help"}).out, StartsWith("usage: hmshim run"));
  const auto unknown = hmshim({"bogus"});
  EXPECT_EQ(unknown.exit_status, 2);
  EXPECT_THAT(unknown.err, StartsWith("hmshim: there is no command bogus\n"));
}

TEST(HmshimReport, reads_what_a_killed_process_left) {
  const TempDir folder;
  const std::string whole = read_file(report_of_training(folder));
  const std::string path = folder.file("cut.jsonl");
  write_file(path, whole.substr(0, whole.size() - 20));
  const auto result = hmshim({"report", path});
  EXPECT_EQ(result.exit_status, 0) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("is cut off"));
  EXPECT_THAT(result.out, HasSubstr("no exit record"));
}

TEST(HmshimReport, says_what_is_wrong_with_a_file) {
  const TempDir folder;
  write_file(folder.file("other"), "{\"kind\":\"exit\"}\n");
  write_file(folder.file("newer"), "{\"schema\":2,\"kind\":\"exit\",\"pid\":1}\n");
  write_file(folder.file("empty"), "");
  const struct {
    std::string file;
    std::string complaint;
  } cases[] = {{folder.file("other"), "line 1 is not a record"},
               {folder.file("newer"), "has schema 2"},
               {folder.file("empty"), "is empty"},
               {folder.file("missing"), "cannot read"}};
  for (const auto& [file, complaint] : cases) {
    const auto result = hmshim({"report", file});
    EXPECT_EQ(result.exit_status, 1) << result.describe();
    EXPECT_THAT(result.err, AllOf(HasSubstr(file), HasSubstr(complaint)));
    EXPECT_EQ(lines_in(result.err), 1);
  }
}

// ---- doctor ----

TEST(HmshimDoctor, finds_the_simulated_gpu_ready) {
  const auto result = hmshim({"doctor"}, on_simgpu());
  EXPECT_EQ(result.exit_status, 0) << result.describe();
  EXPECT_THAT(result.out, HasSubstr("ok    library: " + library()));
  EXPECT_THAT(result.out, HasSubstr("ok    device 0 ("));
  EXPECT_THAT(result.out, HasSubstr("host memory: "));
  EXPECT_THAT(result.out, HasSubstr("This machine is ready.\n"));
}

TEST(HmshimDoctor, says_what_is_missing_without_a_driver) {
  if (std::filesystem::exists("/proc/driver/nvidia")) GTEST_SKIP() << "this machine has a driver";
  const auto result = hmshim({"doctor"});
  EXPECT_EQ(result.exit_status, 1) << result.describe();
  EXPECT_THAT(result.out, HasSubstr("FAIL  driver: no NVIDIA driver (libcuda.so.1"));
  EXPECT_EQ(result.err, "");
}

TEST(HmshimDoctor, names_the_function_that_a_driver_lacks) {
  // Under the driver's name, a library that has other functions than it.
  const TempDir folder;
  std::filesystem::copy_file(library(), folder.file("libcuda.so.1"));
  const auto result = hmshim({"doctor"}, {{"LD_LIBRARY_PATH", folder.path()}});
  EXPECT_EQ(result.exit_status, 1) << result.describe();
  EXPECT_THAT(result.out, AllOf(HasSubstr("FAIL  driver: "), HasSubstr("cuDriverGetVersion")));
  EXPECT_EQ(result.err, "");
}

TEST(HmshimDoctor, is_not_satisfied_with_a_library_that_cannot_be_preloaded) {
  const TempDir folder;
  write_file(folder.file("libhmshim.so"), "not a library");
  const auto result = hmshim({"doctor"}, on_simgpu({{"HMSHIM_LIB", folder.file("libhmshim.so")}}));
  EXPECT_EQ(result.exit_status, 1) << result.describe();
  EXPECT_THAT(result.out, HasSubstr("cannot be preloaded"));
}

TEST(HmshimDoctor, names_a_value_that_the_library_would_refuse_and_a_preload_in_front) {
  const auto result = hmshim({"doctor"}, on_simgpu({{"HMSHIM_LOG", "loud"}, {"LD_PRELOAD", "libm.so.6:" + library()}}));
  EXPECT_EQ(result.exit_status, 1) << result.describe();
  EXPECT_THAT(result.out, HasSubstr("FAIL  HMSHIM_LOG=loud makes no sense"));
  EXPECT_THAT(result.out, HasSubstr("libm.so.6 before libhmshim.so"));
}

TEST(HmshimDoctor, names_a_variable_that_has_no_effect) {
  const auto result = hmshim({"doctor"}, on_simgpu({{"HMSHIM_DEVICE_BUDGT", "8G"}}));
  EXPECT_EQ(result.exit_status, 0) << result.describe();
  EXPECT_THAT(result.out, HasSubstr("note  HMSHIM_DEVICE_BUDGT is not an option of hmshim and has no effect; did you "
                                    "mean HMSHIM_DEVICE_BUDGET?"));
}

// The simulated GPU can migrate; a driver of which one attribute is told here stands for those that cannot.
std::string verdict_on_device(int attribute_off, int attribute_on) {
  const auto result = with_module(
      "class Driver:\n"
      "  def cuDeviceGet(self, device, ordinal): return 0\n"
      "  def cuDeviceGetName(self, text, size, device): text.value = b'NVIDIA Test'; return 0\n"
      "  def cuDeviceTotalMem_v2(self, size, device): size._obj.value = 1 << 30; return 0\n"
      "  def cuDeviceGetAttribute(self, value, which, device):\n"
      "    off, on = map(int, sys.argv[2:])\n"
      "    value._obj.value = which in (83, 89, on) and which != off\n"
      "    return 0\n"
      "print(hmshim.Doctor().check_device(Driver(), 0))\n",
      {std::to_string(attribute_off), std::to_string(attribute_on)});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  return result.out;
}

TEST(HmshimDoctor, judges_a_device_by_what_the_library_judges_it_by) {
  // Attributes of cuda.h: managedMemory 83, concurrentManagedAccess 89, integrated 18, host page tables 100, pageable
  // access 88.
  EXPECT_EQ(verdict_on_device(0, 0), "ok    device 0 (NVIDIA Test, 1.0 GiB): can be managed\n1073741824\n");
  EXPECT_THAT(verdict_on_device(0, 88), AllOf(HasSubstr("HMM"), HasSubstr("\n1073741824\n")));
  EXPECT_THAT(verdict_on_device(83, 0), AllOf(HasSubstr("managedMemory is 0"), HasSubstr("\n0\n")));
  EXPECT_THAT(verdict_on_device(89, 0), AllOf(HasSubstr("concurrentManagedAccess is 0"), HasSubstr("\n0\n")));
  EXPECT_THAT(verdict_on_device(0, 18), AllOf(HasSubstr("shares its memory"), HasSubstr("\n0\n")));
  EXPECT_THAT(verdict_on_device(0, 100), AllOf(HasSubstr("ATS"), HasSubstr("\n0\n")));
}

// ---- the command ----

TEST(Hmshim, without_a_command_it_explains_itself) {
  EXPECT_EQ(hmshim({"--help"}).exit_status, 0);
  for (const std::vector<std::string>& args : {std::vector<std::string>{}, {"trace"}}) {
    const auto result = hmshim(args);
    EXPECT_EQ(result.exit_status, 2);
    EXPECT_THAT(result.err, HasSubstr("usage: hmshim run"));
    EXPECT_EQ(result.out, "");
  }
}

TEST(Hmshim, works_where_it_was_installed) {
  const TempDir folder;
  const auto make = run_guest({.program = "make",
                               .args = {"-C", source_dir(), "BUILD=" + build_dir().string(), "-o", library(), "install",
                                        "PREFIX=/opt/hm", "DESTDIR=" + folder.path().string()},
                               .environment = {{"MAKEFLAGS", std::nullopt}}});
  ASSERT_TRUE(make.succeeded()) << make.describe();
  const std::string prefix = folder.file("opt/hm");
  const auto result = run_guest({.program = prefix + "/bin/hmshim",
                                 .args = {"run", "--summary", "sh", "-c", "printf %s \"$LD_PRELOAD\""},
                                 .environment = {}});
  EXPECT_EQ(result.out, prefix + "/lib/libhmshim.so") << result.describe();
  EXPECT_TRUE(std::filesystem::exists(prefix + "/share/man/man1/hmshim.1"));
}

}  // namespace
}  // namespace hmshim::support
