// A folder that stands for "/": the /proc and cgroup files of a host whose memory the test decides. Gone with the
// object.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "uvm/host_memory.hpp"

namespace hmshim::uvm {

class FakeHost {
 public:
  explicit FakeHost(std::uint64_t available_bytes) {
    char name[] = "/tmp/hmshim_host_XXXXXX";
    root_ = mkdtemp(name);
    set_available(available_bytes);
  }
  ~FakeHost() { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void remove(const std::string& path) { std::filesystem::remove(root_ + path); }
  void set_available(std::uint64_t bytes) {
    write("/proc/meminfo", "MemTotal:       999999999 kB\nMemFree:               1 kB\nMemAvailable:   " +
                               std::to_string(bytes / 1024) + " kB\n");
  }
  [[nodiscard]] const std::string& root() const { return root_; }
  [[nodiscard]] HostMemory memory() const { return HostMemory(root_); }

 private:
  std::string root_;
};

}  // namespace hmshim::uvm
