// Where a program's own lookups of the driver lead, with the library and without: the same answers, the hooked ones
// ours.
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

constexpr const char* kOurs = "libhmshim.so";
constexpr const char* kDrivers = "libcuda.so.1";

struct Row {
  std::string base;
  std::string symbol;
  int since;
  bool is_hooked;
};

const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
#define HOOK(base, symbol, since, flavour, need, effect, params, args) {#base, #symbol, since, true},
#define RESOLVE(base, symbol, since, flavour, params, args) {#base, #symbol, since, true},
#define PASS(base, symbol, since, flavour, reason) {#base, #symbol, since, false},
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
  };
  return rows;
}

std::set<std::string> hooked_symbols() {
  std::set<std::string> symbols;
  for (const Row& row : table()) {
    if (row.is_hooked) symbols.insert(row.symbol);
  }
  return symbols;
}

std::string shim() { return (build_dir() / kOurs).string(); }
std::string other_preload() { return (build_dir() / "guests" / "libasks_preload.so").string(); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// What must become of a line "... SYMBOL LIBRARY" under the library: a hooked symbol of the driver is found in ours.
std::string expected_line(const std::string& bare) {
  static const std::set<std::string> hooked = hooked_symbols();
  const auto library = bare.rfind(' ');
  const auto symbol = bare.rfind(' ', library - 1);
  if (library == std::string::npos || symbol == std::string::npos) return bare;
  if (bare.substr(library + 1) != kDrivers || !hooked.contains(bare.substr(symbol + 1, library - symbol - 1)))
    return bare;
  return bare.substr(0, library + 1) + kOurs;
}

// Number of lines that are hooked; the others are compared too.
std::size_t expect_answers_of_the_driver(const std::string& bare, const std::string& with_shim) {
  const auto before = lines_of(bare);
  const auto after = lines_of(with_shim);
  EXPECT_EQ(before.size(), after.size());
  std::size_t hooked = 0;
  for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    EXPECT_EQ(after[i], expected_line(before[i]));
    hooked += before[i] != expected_line(before[i]);
  }
  return hooked;
}

GuestResult resolve(std::vector<std::string> args, const Environment& environment) {
  return run_guest({.program = guest_program("resolve"), .args = std::move(args), .environment = environment});
}

// Runs the guest without and with the library; returns how many of its answers are hooked.
std::size_t compare_resolve(const std::vector<std::string>& args) {
  const auto bare = resolve(args, on_simgpu());
  const auto with_shim = resolve(args, on_simgpu_with_shim());
  EXPECT_TRUE(bare.succeeded()) << bare.describe();
  EXPECT_TRUE(with_shim.succeeded()) << with_shim.describe();
  return expect_answers_of_the_driver(bare.out, with_shim.out);
}

std::vector<std::string> all_symbols(std::vector<std::string> args) {
  for (const Row& row : table()) args.push_back(row.symbol);
  return args;
}

// Each row's own version and its neighbours, in every flavour: old ABIs, and names that did not exist yet.
std::vector<std::string> all_queries(std::vector<std::string> args) {
  for (const Row& row : table()) {
    for (const int version : {row.since - 10, row.since, 13000}) {
      for (const char* flags : {":0", ":1", ":2"}) args.push_back(row.base + ":" + std::to_string(version) + flags);
    }
  }
  return args;
}

// cuGetProcAddress_v2_ptsz is exported by some drivers only.
std::size_t exports_of_the_driver() { return hooked_symbols().size() - 1; }

TEST(Resolution, direct_references_are_bound_to_the_wrappers) {
  const Guest guest{.program = guest_program("resolve_direct"), .args = {}, .environment = on_simgpu()};
  const auto bare = run_guest(guest);
  ASSERT_TRUE(bare.succeeded()) << bare.describe();
  Guest shimmed = guest;
  shimmed.environment = on_simgpu_with_shim();
  const auto with_shim = run_guest(shimmed);
  ASSERT_TRUE(with_shim.succeeded()) << with_shim.describe();
  EXPECT_EQ(expect_answers_of_the_driver(bare.out, with_shim.out), 12u) << with_shim.out;
}

TEST(Resolution, dlsym_of_every_export_gives_the_drivers_answer_or_its_wrapper) {
  EXPECT_EQ(compare_resolve(all_symbols({"dlsym"})), exports_of_the_driver());
}

TEST(Resolution, dlsym_from_a_constructor_gives_the_same) {
  EXPECT_EQ(compare_resolve(all_symbols({"--constructor", "dlsym"})), exports_of_the_driver());
}

TEST(Resolution, dlsym_from_16_threads_at_once_gives_the_same) {
  EXPECT_EQ(compare_resolve(all_symbols({"--threads", "dlsym"})), exports_of_the_driver());
}

TEST(Resolution, get_proc_address_gives_the_drivers_answer_or_its_wrapper) {
  EXPECT_GT(compare_resolve(all_queries({"proc"})), exports_of_the_driver());
}

TEST(Resolution, get_proc_address_from_16_threads_in_a_constructor_gives_the_same) {
  EXPECT_GT(compare_resolve({"--constructor", "--threads", "proc", "cuMemAlloc:3020:0", "cuLaunchKernel:7000:2",
                             "cuGetProcAddress:12000:0", "cuInit:2000:0", "cuNothing:13000:0"}),
            3u);
}

TEST(Resolution, get_proc_address_without_a_status_gives_the_same) {
  EXPECT_GT(compare_resolve(all_queries({"proc_without_status"})), exports_of_the_driver());
}

TEST(Resolution, get_proc_address_of_its_first_version_gives_the_same) {
  EXPECT_GT(compare_resolve(all_queries({"proc_v1"})), exports_of_the_driver());
}

TEST(Resolution, names_that_only_resemble_the_drivers_are_left_alone) {
  const std::vector<std::string> names = {"cu",          "cuMemAllo",       "cuMemAlloc_v22", "cuMemAlloc_v3",
                                          "cudnnCreate", "cublasCreate_v2", "cudaMalloc",     "",
                                          "malloc",      "dlsym_",          "CUINIT",         "cuinit"};
  for (const char* how : {"dlsym", "global", "default", "next"}) {
    std::vector<std::string> args = {how};
    args.insert(args.end(), names.begin(), names.end());
    EXPECT_EQ(compare_resolve(args), 0u) << how;
  }
  std::vector<std::string> queries = {"proc"};
  for (const std::string& name : names) queries.push_back(name + ":13000:0");
  EXPECT_EQ(compare_resolve(queries), 0u);
}

// A preload library is part of the global scope: the program's own search finds it, as it would find any other.
TEST(Resolution, the_programs_own_scope_holds_the_wrappers) {
  for (const char* how : {"global", "default", "next"}) {
    const auto result = resolve({how, "cuMemAlloc_v2", "cuDeviceGetCount", "cuNothing"}, on_simgpu_with_shim());
    EXPECT_TRUE(result.succeeded()) << result.describe();
    EXPECT_EQ(result.out, "cuMemAlloc_v2 -> cuMemAlloc_v2 libhmshim.so\ncuDeviceGetCount -> -\ncuNothing -> -\n")
        << how;
  }
}

TEST(Resolution, another_preload_that_wraps_dlsym_may_come_first_or_last) {
  const auto bare = resolve(all_symbols({"dlsym"}), on_simgpu());
  for (const std::string& preload : {other_preload() + ":" + shim(), shim() + ":" + other_preload()}) {
    const auto result = resolve(all_symbols({"dlsym"}), on_simgpu({{"LD_PRELOAD", preload}}));
    ASSERT_TRUE(result.succeeded()) << preload << result.describe();
    EXPECT_EQ(expect_answers_of_the_driver(bare.out, result.out), exports_of_the_driver()) << preload;
    // A dlsym in C loses its caller, and with it what RTLD_NEXT means; it must come to an end all the same.
    const auto next = resolve({"next", "cuMemAlloc_v2", "getpid"}, on_simgpu({{"LD_PRELOAD", preload}}));
    EXPECT_TRUE(next.succeeded()) << preload << next.describe();
    const auto theirs = resolve({"dlsym", "asks_preload_was_here"}, on_simgpu({{"LD_PRELOAD", preload}}));
    EXPECT_EQ(theirs.out, "asks_preload_was_here -> unknown\n") << preload << ": the other library has lost its turn";
  }
}

TEST(Resolution, a_driver_that_lacks_newer_names_lacks_them_still) {
  const Environment bare = {{"LD_LIBRARY_PATH", build_dir() / "old_driver"}};
  Environment with_shim = bare;
  with_shim.emplace("LD_PRELOAD", shim());
  const auto compare = [&](const std::vector<std::string>& args) {
    const auto before = resolve(args, bare);
    const auto after = resolve(args, with_shim);
    EXPECT_TRUE(before.succeeded()) << before.describe();
    EXPECT_TRUE(after.succeeded()) << after.describe();
    return expect_answers_of_the_driver(before.out, after.out);
  };
  EXPECT_EQ(compare(all_symbols({"dlsym"})), 6u);
  EXPECT_EQ(compare({"proc_v1", "cuGetProcAddress:11030:0", "cuGetProcAddress:12000:0", "cuLaunchKernelEx:11040:0",
                     "cuCtxSynchronize:11040:0", "cuCtxSynchronize:13000:0", "cuLaunchKernel:11040:2",
                     "cuLaunchKernel:11040:1", "cuMemAlloc:2000:0", "cuMemAlloc:11040:2", "cuInit:11040:0"}),
            6u);
}

// ---- the real runtime, up to where it has asked for everything ----
std::string asks_of(const std::string& guest, const std::string& preload, const std::string& runtime_folder,
                    const std::vector<std::string>& args) {
  const TempDir folder;
  const std::string libraries = (build_dir() / "simgpu").string();
  const auto result = run_guest(
      {.program = guest_program(guest),
       .args = args,
       .environment = {{"LD_LIBRARY_PATH", runtime_folder.empty() ? libraries : runtime_folder + ":" + libraries},
                       {"LD_PRELOAD", preload},
                       {"ASKS_LOG", folder.file("asks")}}});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  return read_file(folder.file("asks"));
}

void expect_every_ask_answered(const std::string& guest, const std::string& runtime_folder,
                               const std::vector<std::string>& args = {}) {
  const std::string bare = asks_of(guest, other_preload(), runtime_folder, args);
  const std::string with_shim = asks_of(guest, other_preload() + ":" + shim(), runtime_folder, args);
  EXPECT_GT(lines_of(bare).size(), 400u);
  EXPECT_GT(expect_answers_of_the_driver(bare, with_shim), 60u);
  for (const char* ask : {"cuMemAlloc 3020 ", "cuLaunchKernel 7000 2", "cuGetProcAddress 12000 "}) {
    EXPECT_NE(with_shim.find(ask), std::string::npos) << ask;
  }
}

TEST(Resolution, the_static_runtime_gets_every_answer_and_the_wrappers) {
  expect_every_ask_answered("resolve_static_runtime", "");
}

TEST(Resolution, the_shared_runtime_gets_every_answer_and_the_wrappers) {
  const std::filesystem::path cuda = std::getenv("HMSHIM_TEST_CUDA");
  const auto folder = std::filesystem::exists(cuda / "lib64") ? cuda / "lib64" : cuda / "lib";
  expect_every_ask_answered("resolve_runtime", folder.string());
}

// It asks for the ABIs of its time, such as cuMemPrefetchAsync 8000.
TEST(Resolution, a_runtime_of_cuda_12_gets_every_answer_and_the_wrappers) {
  expect_every_ask_answered("resolve_runtime12", "", {build_dir() / "cuda12" / "libcudart.so.12"});
}

// The runtime passes the question on to the cuGetProcAddress that it was given.
TEST(Resolution, the_runtimes_own_lookup_gives_the_wrappers) {
  const Guest guest{.program = guest_program("resolve_entry_point"), .args = {}, .environment = on_simgpu()};
  const auto bare = run_guest(guest);
  ASSERT_TRUE(bare.succeeded()) << bare.describe();
  Guest shimmed = guest;
  shimmed.environment = on_simgpu_with_shim();
  const auto with_shim = run_guest(shimmed);
  ASSERT_TRUE(with_shim.succeeded()) << with_shim.describe();
  EXPECT_EQ(expect_answers_of_the_driver(bare.out, with_shim.out), 2u) << with_shim.out;
}

TEST(Resolution, a_program_without_cuda_runs_as_if_alone) {
  const auto result = run_guest({.program = "/bin/true", .args = {}, .environment = {{"LD_PRELOAD", shim()}}});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  EXPECT_EQ(result.out + result.err, "");
}

}  // namespace
}  // namespace hmshim::support
