// What the library has to say, on stderr, one line a message: "hmshim[pid]: level: text". Silent until log_start(),
// silent in a forked child. Goes to a private copy of the stderr of the start: a guest that later closes or redirects
// its own is not written into.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace hmshim::interpose {

enum class LogLevel : std::uint8_t { Off, Error, Warn, Info, Debug };

// Copies stderr; messages of `level` and more important ones are written from here on.
void log_start(LogLevel level) noexcept;
// In a forked child: nothing more is written, the copy of stderr is closed.
void log_forget_after_fork() noexcept;
// The text as it is, whatever the level; false when it could not be written. Locking: a leaf lock.
bool write_to_stderr(std::string_view text) noexcept;

namespace log_detail {
inline std::atomic<LogLevel> level{LogLevel::Off};
void write(LogLevel level, std::string_view text, const char* file, int line) noexcept;
}  // namespace log_detail

[[nodiscard]] inline bool is_logged(LogLevel level) noexcept {
  return level <= log_detail::level.load(std::memory_order_relaxed);
}

// Each call site is heard a few times at most; the last of them says that it is. The source position is the caller's.
inline void log(LogLevel level, std::string_view text, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) noexcept {
  if (is_logged(level)) log_detail::write(level, text, file, line);
}

// The same for a text that costs something: `text` is called only if the level is logged.
template <std::invocable Text>
void log(LogLevel level, Text&& text, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (is_logged(level)) log_detail::write(level, text(), file, line);
}

}  // namespace hmshim::interpose
