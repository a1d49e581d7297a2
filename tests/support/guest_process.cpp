#include "tests/support/guest_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace hmshim::support {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

class Pipe {
 public:
  Pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) fail(errno, "pipe2");
    read_end_ = ends[0];
    write_end_ = ends[1];
  }
  ~Pipe() {
    close_read();
    close_write();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int read_end() const { return read_end_; }
  [[nodiscard]] int write_end() const { return write_end_; }
  void close_read() { close_end(read_end_); }
  void close_write() { close_end(write_end_); }

  // Appends what is there; closes the read end when no writer is left.
  void drain(std::string& text) {
    std::array<char, 65536> buffer;
    const ssize_t got = read(read_end_, buffer.data(), buffer.size());
    if (got > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      close_read();
    }
  }

 private:
  static void close_end(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
  int read_end_ = -1;
  int write_end_ = -1;
};

bool is_hidden_from_guests(std::string_view name) {
  return name == "LD_PRELOAD" || name.starts_with("SIMGPU_") ||
         (name.starts_with("HMSHIM_") && !name.starts_with("HMSHIM_TEST_"));
}

std::vector<std::string> guest_environment(const Environment& changes) {
  std::map<std::string, std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || is_hidden_from_guests(text.substr(0, equals))) continue;
    result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  for (const auto& [name, value] : changes) {
    if (value) {
      result[name] = *value;
    } else {
      result.erase(name);
    }
  }
  std::vector<std::string> entries;
  entries.reserve(result.size());
  for (const auto& [name, value] : result) entries.push_back(name + '=' + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

pid_t spawn(const Guest& guest, const Pipe& out, const Pipe& err) {
  std::vector<std::string> arguments{guest.program.string()};
  arguments.insert(arguments.end(), guest.args.begin(), guest.args.end());
  std::vector<std::string> environment = guest_environment(guest.environment);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write_end(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write_end(), STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // group 0: the child's own

  pid_t child = -1;
  const int error = posix_spawnp(&child, arguments[0].c_str(), &actions, &attributes, pointers(arguments).data(),
                                 pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail(error, "cannot start " + arguments[0]);
  return child;
}

// Reads both pipes until no writer is left. False at the deadline.
bool collect(Pipe& out, Pipe& err, GuestResult& result, Clock::time_point deadline) {
  while (out.read_end() >= 0 || err.read_end() >= 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    // poll ignores negative descriptors: a finished pipe drops out by itself.
    std::array<pollfd, 2> waiting{{{out.read_end(), POLLIN, 0}, {err.read_end(), POLLIN, 0}}};
    if (poll(waiting.data(), waiting.size(), static_cast<int>(left.count())) <= 0) continue;
    if (waiting[0].revents != 0) out.drain(result.out);
    if (waiting[1].revents != 0) err.drain(result.err);
  }
  return true;
}

// False at the deadline.
bool reap(pid_t child, int& status, Clock::time_point deadline) {
  for (;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return true;
    if (ended < 0 && errno != EINTR) fail(errno, "waitpid");
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

std::string GuestResult::describe() const {
  const std::string end = timed_out     ? fmt::format("timed out after {:.1f} s", seconds)
                          : signal != 0 ? fmt::format("was ended by signal {} ({})", signal, strsignal(signal))
                                        : fmt::format("exited with status {}", exit_status);
  return fmt::format("guest {}\n--- stdout\n{}\n--- stderr\n{}\n---", end, out, err);
}

GuestResult run_guest(const Guest& guest) {
  const Clock::time_point start = Clock::now();
  const Clock::time_point deadline = start + guest.timeout;
  GuestResult result;
  Pipe out;
  Pipe err;
  const pid_t child = spawn(guest, out, err);
  out.close_write();
  err.close_write();

  int status = 0;
  const bool collected = collect(out, err, result, deadline);
  const bool ended = reap(child, status, deadline);
  result.timed_out = !collected || !ended;
  if (result.timed_out) {
    kill(-child, SIGKILL);
    if (!ended) waitpid(child, &status, 0);
    result.err += fmt::format("\n[{} ran longer than {} ms: its process group was killed]\n", guest.program.string(),
                              guest.timeout.count());
  }
  if (WIFEXITED(status)) result.exit_status = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

std::filesystem::path build_dir() {
  const char* value = std::getenv("HMSHIM_TEST_BUILD");
  if (value == nullptr) {
    throw std::runtime_error("HMSHIM_TEST_BUILD is not set: run `make test`, or set it to the build folder");
  }
  if (!std::filesystem::is_directory(value)) {
    throw std::runtime_error(fmt::format("HMSHIM_TEST_BUILD={} is not a folder: set it to the build folder", value));
  }
  return std::filesystem::canonical(value);
}

std::filesystem::path source_dir() {
  for (std::filesystem::path folder = std::filesystem::current_path();; folder = folder.parent_path()) {
    if (std::filesystem::exists(folder / "interpose" / "options.def")) return folder;
    if (folder == folder.parent_path()) break;
  }
  throw std::runtime_error(fmt::format("{} is not in the source tree: run the tests from a folder inside it",
                                       std::filesystem::current_path().string()));
}

std::filesystem::path guest_program(std::string_view name) {
  const std::filesystem::path program = build_dir() / "guests" / name;
  if (!std::filesystem::exists(program))
    throw std::runtime_error(program.string() + " is not built: run `make guests`");
  return program;
}

Environment on_simgpu(const Environment& extra) {
  std::string libraries = (build_dir() / "simgpu").string();
  if (const char* inherited = std::getenv("LD_LIBRARY_PATH"); inherited != nullptr && *inherited != '\0') {
    libraries += std::string(":") + inherited;
  }
  Environment environment = extra;
  environment.emplace("LD_LIBRARY_PATH", libraries);
  // Where everything is instrumented the sanitizer's runtime must come first in each process.
  if (const char* runtime = std::getenv("HMSHIM_TEST_SANITIZER"); runtime != nullptr && *runtime != '\0') {
    auto& preload = environment["LD_PRELOAD"];
    preload = runtime + (preload ? ":" + *preload : "");
  }
  return environment;
}

Environment on_simgpu_with_shim(const Environment& extra) {
  Environment environment = extra;
  environment.emplace("LD_PRELOAD", (build_dir() / "libhmshim.so").string());
  return on_simgpu(environment);
}

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "hmshim-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) fail(errno, "mkdtemp " + pattern);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file.write(text.data(), static_cast<std::streamsize>(text.size())).flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  std::vector<nlohmann::json> records;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    const std::string where = fmt::format("{} line {}", path.string(), records.size() + 1);
    if (end == std::string::npos) throw std::runtime_error(where + " is cut off: no newline at its end");
    try {
      records.push_back(nlohmann::json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                              text.begin() + static_cast<std::ptrdiff_t>(end)));
    } catch (const nlohmann::json::parse_error& error) {
      throw std::runtime_error(fmt::format("{} is not JSON: {}", where, error.what()));
    }
    begin = end + 1;
  }
  return records;
}

}  // namespace hmshim::support
