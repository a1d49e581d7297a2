// How much host memory this process can still have: what the kernel calls available, less where one of its control
// groups leaves less.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hmshim::uvm {

class HostMemory {
 public:
  // `root` is "/", or in tests a folder with the same files below it. Finds the process's cgroups (v1 and v2) once; a
  // limit on any level of the path binds, so each level that has one is remembered.
  explicit HostMemory(const std::string& root = "/");
  // Of a machine that is simulated: what `simulated` answers, whatever this one has.
  explicit HostMemory(std::uint64_t (*simulated)()) : simulated_(simulated) {}

  // Reads the files anew. 0 when MemAvailable cannot be read: what nobody knows is not promised.
  [[nodiscard]] std::uint64_t available_bytes() const;

 private:
  struct CgroupLevel {
    std::string limit_path;
    std::string usage_path;
    std::string stat_path;
    std::string
        cache_key;  // the line of stat_path that counts page cache the kernel would drop rather than refuse memory
  };

  std::uint64_t (*simulated_)() = nullptr;
  std::string meminfo_path_;
  std::vector<CgroupLevel> levels_;
};

}  // namespace hmshim::uvm
