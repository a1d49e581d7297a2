// What a program finds in its environment once the library has been loaded.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/guest_process.hpp"

namespace hmshim::support {
namespace {

std::string allocator_variables(const std::filesystem::path& program, std::vector<std::string> args,
                                const Environment& more) {
  Environment environment =
      on_simgpu_with_shim({{"PYTORCH_ALLOC_CONF", std::nullopt}, {"PYTORCH_CUDA_ALLOC_CONF", std::nullopt}});
  for (const auto& [name, value] : more) environment[name] = value;
  const auto result = run_guest({.program = program, .args = std::move(args), .environment = environment});
  EXPECT_TRUE(result.succeeded()) << result.describe();
  return result.out;
}

// What C++ code in a Python program finds, as PyTorch's does.
constexpr const char* kAskPython = R"(
import ctypes
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(*[value and value.decode() for value in (getenv(b'PYTORCH_ALLOC_CONF'), getenv(b'PYTORCH_CUDA_ALLOC_CONF'))]))";

std::string in_python(const Environment& more, const std::string& then = "") {
  return allocator_variables("/usr/bin/python3", {"-c", kAskPython + then}, more);
}

TEST(PreloadGranularity, a_python_program_is_told_to_allocate_tensor_by_tensor) {
  EXPECT_EQ(in_python({}), "backend:cudaMallocAsync backend:cudaMallocAsync\n");
  EXPECT_EQ(in_python({{"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64"}}),
            "None max_split_size_mb:64,backend:cudaMallocAsync\n");
}

TEST(PreloadGranularity, nothing_changes_when_the_user_or_the_program_does_not_want_it) {
  EXPECT_EQ(in_python({{"HMSHIM_GRANULARITY", "segment"}}), "None None\n");
  EXPECT_EQ(in_python({{"HMSHIM_DISABLE", "1"}}), "None None\n");
  EXPECT_EQ(in_python({{"HMSHIM_POLICY", "off"}}), "None None\n");
  EXPECT_EQ(in_python({{"PYTORCH_ALLOC_CONF", "backend:native"}}), "backend:native None\n");
  EXPECT_EQ(allocator_variables("/bin/sh", {"-c", "echo \"[$PYTORCH_ALLOC_CONF$PYTORCH_CUDA_ALLOC_CONF]\""}, {}),
            "[]\n")
      << "only Python programs";
}

// As programs do at their top, before they import torch.
TEST(PreloadGranularity, what_the_program_sets_itself_counts_as_if_the_user_had) {
  const auto after = [](const std::string& then) {
    return in_python({}, "\nimport os\n" + then +
                             "\nprint(*[value and value.decode() for value in"
                             " (getenv(b'PYTORCH_ALLOC_CONF'), getenv(b'PYTORCH_CUDA_ALLOC_CONF'))])");
  };
  const std::string before = "backend:cudaMallocAsync backend:cudaMallocAsync\n";
  EXPECT_EQ(after("os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:native'"), before + "None backend:native\n");
  EXPECT_EQ(after("os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'"),
            before + "None expandable_segments:True\n");
  EXPECT_EQ(after("os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'max_split_size_mb:64'"),
            before + "None max_split_size_mb:64,backend:cudaMallocAsync\n");
  EXPECT_EQ(after("os.environ['PYTORCH_ALLOC_CONF'] = 'backend:native'; del os.environ['PYTORCH_ALLOC_CONF']"),
            before + before);
}

// The ways in which Python starts a program, with the library and without it.
TEST(PreloadGranularity, no_child_inherits_what_only_makes_sense_beside_the_library) {
  const char* const then = R"(
import os, subprocess, sys
sys.stdout.flush()
bare = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}
ask = ['/bin/sh', '-c', 'echo [$PYTORCH_ALLOC_CONF$PYTORCH_CUDA_ALLOC_CONF]']
subprocess.run(ask)
subprocess.run(ask, env=bare)
os.system('unset LD_PRELOAD; echo [$PYTORCH_ALLOC_CONF$PYTORCH_CUDA_ALLOC_CONF]')
os.waitpid(os.posix_spawn('/bin/sh', ask, bare), 0)
os.execve('/bin/sh', ask, bare)
)";
  EXPECT_EQ(in_python({}, then), "backend:cudaMallocAsync backend:cudaMallocAsync\n[]\n[]\n[]\n[]\n[]\n");
  EXPECT_EQ(in_python({{"PYTORCH_CUDA_ALLOC_CONF", "a:1"}}, then),
            "None a:1,backend:cudaMallocAsync\n[a:1]\n[a:1]\n[a:1]\n[a:1]\n[a:1]\n");
}

}  // namespace
}  // namespace hmshim::support
