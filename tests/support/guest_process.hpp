// Runs one guest process and catches all that can be seen of it from outside: its output, how it ended, its report.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hmshim::support {

// Changes to the environment of a guest: name → value, or nullopt to remove the name.
using Environment = std::map<std::string, std::optional<std::string>>;

struct Guest {
  std::filesystem::path program;
  std::vector<std::string> args;
  // Applied to this process's environment, of which the guest never sees LD_PRELOAD, SIMGPU_* and HMSHIM_* (except
  // HMSHIM_TEST_*): what surrounds a test run cannot change its result.
  Environment environment;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

struct GuestResult {
  std::string out;       // all of stdout, of the guest and of the children that it left
  std::string err;       // all of stderr; after a timeout, with a last line that says so
  int exit_status = -1;  // -1 when a signal ended the guest
  int signal = 0;        // 0 when the guest exited
  bool timed_out = false;
  double seconds = 0;  // real time from start to end

  [[nodiscard]] bool succeeded() const { return exit_status == 0; }
  // One paragraph for a failure message: how it ended, and both outputs.
  [[nodiscard]] std::string describe() const;
};

// Runs the guest to its end: stdin is empty, the guest leads a process group of its own. Whatever of that group still
// runs, or still holds stdout or stderr open, at the timeout is killed. Throws std::system_error when the program
// cannot be started.
[[nodiscard]] GuestResult run_guest(const Guest& guest);

// The build folder, from HMSHIM_TEST_BUILD, which `make test` sets. Throws std::runtime_error when unset or not a
// folder.
[[nodiscard]] std::filesystem::path build_dir();

// The top of the source tree, found upwards from the current folder. Throws std::runtime_error outside of it.
[[nodiscard]] std::filesystem::path source_dir();

// build/guests/NAME. Throws std::runtime_error when it is not there.
[[nodiscard]] std::filesystem::path guest_program(std::string_view name);

// The environment in which CUDA programs find the simulated GPU, and `extra` on top of it.
[[nodiscard]] Environment on_simgpu(const Environment& extra = {});

// The same with the library under test preloaded.
[[nodiscard]] Environment on_simgpu_with_shim(const Environment& extra = {});

// A folder of its own that goes away with everything in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string file(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// Throws std::runtime_error when the file cannot be read.
[[nodiscard]] std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, std::string_view text);

// Every line of a report, parsed. Throws std::runtime_error naming the file and the line when one is not JSON or the
// last has no newline. Callers include <nlohmann/json.hpp>.
[[nodiscard]] std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& path);

}  // namespace hmshim::support
