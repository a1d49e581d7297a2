// Libraries that need device memory because they share it: known ones get it, others can be named.
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kShared = "shared -> 0\nshared -> 0\n";

// Runs the program with its communication library under a name.
GuestResult communicate(const TempDir& folder, const std::string& name, const Environment& extra) {
  const std::string library = folder.file(name);
  std::filesystem::copy_file(build_dir() / "guests" / "libcomm_library.so", library,
                             std::filesystem::copy_options::overwrite_existing);
  return run_guest({.program = guest_program("comm"), .args = {library}, .environment = on_simgpu_with_shim(extra)});
}

TEST(Callers, that_share_managed_memory_get_the_drivers_error_and_are_named_once) {
  const TempDir folder;
  const auto result = communicate(folder, "libmine.so.2", {{"HMSHIM_REPORT", folder.file("r.jsonl")}});
  ASSERT_TRUE(result.succeeded()) << result.describe();
  const std::string refused = "shared -> " + std::to_string(CUDA_ERROR_INVALID_VALUE) + "\n";
  EXPECT_EQ(result.out, refused + refused);
  EXPECT_THAT(result.err,
              AllOf(StartsWith("hmshim["), HasSubstr("libmine.so.2 asks to share"), HasSubstr("HMSHIM_EXCLUDE")));
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1);
  const json exit = read_json_lines(folder.file("r.jsonl")).back();
  ASSERT_EQ(exit.at("callers").size(), 1U);
  EXPECT_EQ(exit.at("callers").at(0).at("library"), "libmine.so.2");
  EXPECT_EQ(exit.at("callers").at(0).at("refused_handles"), 2);
  EXPECT_EQ(exit.at("callers").at(0).at("refused_bytes"), 8 << 20);
}

TEST(Callers, that_are_excluded_get_device_memory) {
  const TempDir folder;
  for (const char* exclude : {"libmine", "libother.so,libmine.so.2"}) {
    const auto result =
        communicate(folder, "libmine.so.2", {{"HMSHIM_EXCLUDE", exclude}, {"HMSHIM_REPORT", folder.file("r.jsonl")}});
    EXPECT_EQ(result.out, kShared) << result.describe();
    EXPECT_EQ(result.err, "");
    const json exit = read_json_lines(folder.file("r.jsonl")).back();
    EXPECT_EQ(exit.at("callers").at(0).at("excluded_bytes"), 8 << 20);
    EXPECT_EQ(exit.at("allocations").at("managed").at("count"), 0);
  }
}

TEST(Callers, are_excluded_by_whole_names_only) {
  const TempDir folder;
  const auto result = communicate(folder, "libmine.so.2", {{"HMSHIM_EXCLUDE", "libmi"}});
  EXPECT_EQ(result.out.find(kShared), std::string::npos) << result.describe();
}

TEST(Callers, nccl_ucx_and_nvshmem_are_excluded_from_the_start) {
  const TempDir folder;
  for (const char* name : {"libnccl.so.2", "libuct_cuda.so.0", "libnvshmem_host.so.3"}) {
    const auto result = communicate(folder, name, {});
    EXPECT_EQ(result.out, kShared) << name << "\n" << result.describe();
    EXPECT_EQ(result.err, "");
  }
}

TEST(Callers, a_list_that_is_none_is_refused) {
  const TempDir folder;
  const auto result = communicate(folder, "libmine.so", {{"HMSHIM_EXCLUDE", "libmine,,"}});
  EXPECT_EQ(result.out, kShared) << "nothing is managed";
  EXPECT_THAT(result.err, HasSubstr("HMSHIM_EXCLUDE=libmine,, makes no sense: give file names of libraries"));
}

}  // namespace
}  // namespace hmshim::support
