// A file that the library writes to from inside somebody else's process. It cannot hurt that process: it never
// truncates, raises no signal, sits far above the descriptors that a guest counts on, and stops for good rather than
// write to a file that the guest has put in the place of ours. Not thread-safe: the owner holds the lock.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace hmshim::interpose {

class OutputFile {
 public:
  OutputFile() = default;
  ~OutputFile() { close(); }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Opens for appending, creating the file if need be. 0 or the errno.
  [[nodiscard]] int open_append(const char* path) noexcept;
  // A descriptor of our own on what `descriptor` refers to now. 0 or the errno.
  [[nodiscard]] int duplicate(int descriptor) noexcept;
  // 0, or the errno (EBADF: the guest has closed it, or it never was open) when not all of `text` could be written;
  // then the file is closed: a half-written line is never continued by another.
  int write(std::string_view text) noexcept;
  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
  void close() noexcept;

 private:
  [[nodiscard]] int take(int descriptor) noexcept;
  [[nodiscard]] bool is_ours() const noexcept;

  int descriptor_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace hmshim::interpose
