#include "uvm/small_file.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace hmshim::uvm {

std::optional<std::string> read_small_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string text;
  char chunk[4096];
  ssize_t got = 0;
  while ((got = read(file, chunk, sizeof chunk)) > 0) text.append(chunk, static_cast<std::size_t>(got));
  close(file);
  if (got < 0) return std::nullopt;
  return text;
}

}  // namespace hmshim::uvm
