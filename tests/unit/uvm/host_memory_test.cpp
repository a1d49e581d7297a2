#include "uvm/host_memory.hpp"

#include <gtest/gtest.h>

#include "tests/unit/uvm/fake_host.hpp"

namespace hmshim::uvm {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
std::string bytes(std::uint64_t value) { return std::to_string(value) + "\n"; }

TEST(HostMemory, is_mem_available_where_no_cgroup_binds_and_is_read_anew) {
  FakeHost host(10 * kGiB);
  const HostMemory memory = host.memory();
  EXPECT_EQ(memory.available_bytes(), 10 * kGiB);
  host.set_available(3 * kGiB);
  EXPECT_EQ(memory.available_bytes(), 3 * kGiB);
}

TEST(HostMemory, nothing_is_available_when_the_kernel_does_not_say) {
  FakeHost host(10 * kGiB);
  const HostMemory memory = host.memory();
  host.remove("/proc/meminfo");
  EXPECT_EQ(memory.available_bytes(), 0u);
  host.write("/proc/meminfo", "MemTotal: 5 kB\n");
  EXPECT_EQ(memory.available_bytes(), 0u);
}

class V2Host : public FakeHost {
 public:
  V2Host() : FakeHost(100 * kGiB) {
    write("/proc/self/cgroup", "0::/user.slice/job.scope\n");
    write("/proc/self/mountinfo", "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
    set("/user.slice/job.scope", "max\n", 2 * kGiB);
  }
  void set(const std::string& cgroup, const std::string& limit, std::uint64_t usage) {
    write("/sys/fs/cgroup" + cgroup + "/memory.max", limit);
    write("/sys/fs/cgroup" + cgroup + "/memory.current", bytes(usage));
  }
};

TEST(HostMemory, a_v2_cgroup_without_a_limit_does_not_bind) {
  V2Host host;
  EXPECT_EQ(host.memory().available_bytes(), 100 * kGiB);
}

TEST(HostMemory, the_tightest_level_of_a_v2_path_binds) {
  V2Host host;
  host.set("/user.slice/job.scope", bytes(50 * kGiB), 2 * kGiB);
  EXPECT_EQ(host.memory().available_bytes(), 48 * kGiB);
  host.set("/user.slice", bytes(40 * kGiB), 30 * kGiB);
  EXPECT_EQ(host.memory().available_bytes(), 10 * kGiB);
}

TEST(HostMemory, a_limit_raised_at_run_time_is_seen) {
  V2Host host;
  host.set("/user.slice/job.scope", bytes(4 * kGiB), 2 * kGiB);
  const HostMemory memory = host.memory();
  EXPECT_EQ(memory.available_bytes(), 2 * kGiB);
  host.set("/user.slice/job.scope", bytes(8 * kGiB), 3 * kGiB);
  EXPECT_EQ(memory.available_bytes(), 5 * kGiB);
}

TEST(HostMemory, a_cgroup_over_its_limit_leaves_nothing) {
  V2Host host;
  host.set("/user.slice/job.scope", bytes(2 * kGiB), 3 * kGiB);
  EXPECT_EQ(host.memory().available_bytes(), 0u);
}

TEST(HostMemory, page_cache_that_the_kernel_would_drop_counts_as_available) {
  V2Host host;
  host.set("/user.slice/job.scope", bytes(10 * kGiB), 9 * kGiB);
  host.write("/sys/fs/cgroup/user.slice/job.scope/memory.stat",
             "anon 1\ninactive_anon 7\ninactive_file " + bytes(6 * kGiB));
  EXPECT_EQ(host.memory().available_bytes(), 7 * kGiB);
}

TEST(HostMemory, a_v1_cgroup_binds_by_its_own_files) {
  FakeHost host(100 * kGiB);
  host.write("/proc/self/cgroup", "11:cpu,cpuacct:/a\n4:memory:/docker/abc\n0::/\n");
  host.write("/proc/self/mountinfo",
             "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
             "36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
             "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
  host.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  host.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", bytes(30 * kGiB));
  EXPECT_EQ(host.memory().available_bytes(), 100 * kGiB);
  host.write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", bytes(16 * kGiB));
  host.write("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", bytes(12 * kGiB));
  host.write("/sys/fs/cgroup/memory/docker/abc/memory.stat", "inactive_file 5\ntotal_inactive_file " + bytes(1 * kGiB));
  EXPECT_EQ(host.memory().available_bytes(), 5 * kGiB);
}

TEST(HostMemory, a_container_sees_its_cgroup_at_the_mount_point) {
  FakeHost host(100 * kGiB);
  host.write("/proc/self/cgroup", "4:memory:/docker/abc/inner\n");
  host.write("/proc/self/mountinfo",
             "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,relatime master:14 - cgroup cgroup rw,memory\n");
  host.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", bytes(8 * kGiB));
  host.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", bytes(1 * kGiB));
  EXPECT_EQ(host.memory().available_bytes(), 7 * kGiB);
  host.write("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", bytes(2 * kGiB));
  host.write("/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", bytes(1 * kGiB));
  EXPECT_EQ(host.memory().available_bytes(), 1 * kGiB);
}

TEST(HostMemory, a_cgroup_outside_the_mounted_one_counts_as_the_mount_point) {
  FakeHost host(100 * kGiB);
  host.write("/proc/self/cgroup", "0::/docker/abcd\n");  // not below /docker/abc, although its name begins so
  host.write("/proc/self/mountinfo", "29 22 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n");
  host.write("/sys/fs/cgroup/memory.max", bytes(6 * kGiB));
  host.write("/sys/fs/cgroup/memory.current", bytes(2 * kGiB));
  EXPECT_EQ(host.memory().available_bytes(), 4 * kGiB);
}

TEST(HostMemory, of_a_simulated_machine_is_what_the_simulation_says) {
  EXPECT_EQ(HostMemory([] { return std::uint64_t{3} * kGiB; }).available_bytes(), 3 * kGiB);
}

TEST(HostMemory, the_machine_at_hand_has_some) { EXPECT_GT(HostMemory().available_bytes(), 0u); }

}  // namespace
}  // namespace hmshim::uvm
