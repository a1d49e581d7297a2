#include "uvm/host_memory.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include "uvm/small_file.hpp"

namespace hmshim::uvm {

namespace {

// The number that follows `key` at the start of a line, as in "MemAvailable:   1234 kB" and "inactive_file 1234".
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.starts_with(key)) continue;
    const std::size_t digit = line.find_first_not_of(' ', key.size());
    std::uint64_t number = 0;
    if (digit != line.npos && std::from_chars(line.data() + digit, line.data() + line.size(), number).ec == std::errc{})
      return number;
  }
  return std::nullopt;
}

// Nothing for "max" (v2's word for no limit) and for a file that is not there: the root cgroup has none.
std::optional<std::uint64_t> number_in(const std::string& path) {
  const std::optional<std::string> text = read_small_file(path);
  return text ? number_after(*text, "") : std::nullopt;
}

// Whether a list such as "cpu,cpuacct" has "memory" in it.
bool names_memory(const std::string& list) {
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');) {
    if (item == "memory") return true;
  }
  return false;
}

struct CgroupMount {
  std::string cgroup;  // the cgroup that is mounted there; not "/" in a container without a cgroup namespace
  std::string path;
  bool is_v2;
};

// Lines of proc_pid_mountinfo(5): id parent major:minor ROOT MOUNT_POINT options [tag]* - TYPE source SUPER_OPTIONS
std::vector<CgroupMount> memory_cgroup_mounts(const std::string& mountinfo) {
  std::vector<CgroupMount> mounts;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    std::string skipped, root, path, type, source, options;
    std::istringstream(line) >> skipped >> skipped >> skipped >> root >> path;
    std::istringstream(line.substr(dash + 3)) >> type >> source >> options;
    const bool is_v2 = type == "cgroup2";
    if (is_v2 || (type == "cgroup" && names_memory(options))) mounts.push_back({root, path, is_v2});
  }
  return mounts;
}

// Lines of /proc/self/cgroup, cgroups(7): "0::PATH" for v2, "N:controller,…:PATH" for v1.
std::optional<std::string> cgroup_path(const std::string& membership, bool is_v2) {
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (is_v2 ? controllers.empty() : names_memory(controllers)) return line.substr(second + 1);
  }
  return std::nullopt;
}

// The part of `path` below `top`, "" where it is `top` itself or does not lie below it: the mount point is then the
// nearest known level.
std::string below_top(const std::string& path, const std::string& top) {
  const std::string prefix = top == "/" ? "" : top;
  if (path == "/" || !path.starts_with(prefix + "/")) return "";
  return path.substr(prefix.size());
}

}  // namespace

HostMemory::HostMemory(const std::string& root) {
  const std::string prefix = root.ends_with('/') ? root.substr(0, root.size() - 1) : root;
  meminfo_path_ = prefix + "/proc/meminfo";
  const std::string membership = read_small_file(prefix + "/proc/self/cgroup").value_or("");
  const std::string mountinfo = read_small_file(prefix + "/proc/self/mountinfo").value_or("");
  for (const CgroupMount& mount : memory_cgroup_mounts(mountinfo)) {
    std::string folder = prefix + mount.path;
    const std::size_t top = folder.size();
    folder += below_top(cgroup_path(membership, mount.is_v2).value_or("/"), mount.cgroup);
    for (;;) {
      const CgroupLevel level = mount.is_v2
                                    ? CgroupLevel{folder + "/memory.max", folder + "/memory.current",
                                                  folder + "/memory.stat", "inactive_file "}
                                    : CgroupLevel{folder + "/memory.limit_in_bytes", folder + "/memory.usage_in_bytes",
                                                  folder + "/memory.stat", "total_inactive_file "};
      if (read_small_file(level.limit_path)) levels_.push_back(level);
      if (folder.size() == top) break;
      folder.resize(folder.rfind('/'));
    }
  }
}

std::uint64_t HostMemory::available_bytes() const {
  if (simulated_ != nullptr) return simulated_();
  const std::optional<std::string> meminfo = read_small_file(meminfo_path_);
  const std::optional<std::uint64_t> available_kib = meminfo ? number_after(*meminfo, "MemAvailable:") : std::nullopt;
  if (!available_kib) return 0;
  std::uint64_t available = *available_kib * 1024;
  for (const CgroupLevel& level : levels_) {
    const std::optional<std::uint64_t> limit = number_in(level.limit_path);
    const std::optional<std::uint64_t> usage = number_in(level.usage_path);
    if (!limit || !usage) continue;
    const std::uint64_t cache =
        number_after(read_small_file(level.stat_path).value_or(""), level.cache_key).value_or(0);
    const std::uint64_t used = *usage - std::min(cache, *usage);
    available = std::min(available, *limit - std::min(used, *limit));
  }
  return available;
}

}  // namespace hmshim::uvm
