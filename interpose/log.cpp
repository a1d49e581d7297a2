#include "interpose/log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <new>

#include "interpose/output_file.hpp"

namespace hmshim::interpose {
namespace {

constexpr std::uint32_t kLinesPerSite = 5;

struct Sink {
  std::mutex mutex;
  OutputFile copy_of_stderr;
};

// Never destroyed: destructors and atexit handlers of the guest may still have us log.
Sink& sink() noexcept {
  alignas(Sink) static unsigned char storage[sizeof(Sink)];
  static Sink* const instance = new (storage) Sink;
  return *instance;
}

// How often each call site was heard. Fixed size, lock-free; when more sites than slots have spoken the rest share the
// last one and fall silent together.
class Sites {
 public:
  // 1 for the first line of this site, 2 for the second …
  std::uint32_t count(const char* file, int line) noexcept {
    const std::uint64_t key = reinterpret_cast<std::uintptr_t>(file) * 4099 + static_cast<std::uint64_t>(line);
    for (std::size_t probe = 0; probe + 1 < slots_.size(); ++probe) {
      Slot& slot = slots_[(key + probe) % (slots_.size() - 1)];
      std::uint64_t found = 0;
      if (slot.key.compare_exchange_strong(found, key) || found == key) return ++slot.lines;
    }
    return ++slots_.back().lines;
  }

 private:
  struct Slot {
    std::atomic<std::uint64_t> key{0};
    std::atomic<std::uint32_t> lines{0};
  };
  std::array<Slot, 257> slots_;
};

Sites sites;

std::string_view word(LogLevel level) {
  switch (level) {
    case LogLevel::Error:
      return "error";
    case LogLevel::Warn:
      return "warning";
    case LogLevel::Info:
      return "info";
    case LogLevel::Debug:
      return "debug";
    case LogLevel::Off:
      break;
  }
  return "off";
}

}  // namespace

void log_start(LogLevel level) noexcept {
  Sink& out = sink();
  const std::lock_guard lock(out.mutex);
  // A guest may run without a stderr at all: there is nobody to tell.
  if (out.copy_of_stderr.is_open() || out.copy_of_stderr.duplicate(STDERR_FILENO) == 0) log_detail::level = level;
}

void log_forget_after_fork() noexcept {
  log_detail::level = LogLevel::Off;
  // Without the lock: a thread that the child does not have may hold it for ever. An open copy would keep the reader of
  // the parent's stderr waiting for the end of a child that outlives the parent.
  sink().copy_of_stderr.close();
}

bool write_to_stderr(std::string_view text) noexcept {
  Sink& out = sink();
  const std::lock_guard lock(out.mutex);
  return out.copy_of_stderr.write(text) == 0;
}

void log_detail::write(LogLevel level, std::string_view text, const char* file, int line) noexcept {
  try {
    const std::uint32_t heard = sites.count(file, line);
    if (heard > kLinesPerSite) return;
    write_to_stderr(fmt::format("hmshim[{}]: {}: {}{}\n", getpid(), word(level), text,
                                heard == kLinesPerSite ? " (more of this kind will not be shown)" : ""));
  } catch (...) {
    // No memory for the line: the guest has worse troubles than a missing message.
  }
}

}  // namespace hmshim::interpose
