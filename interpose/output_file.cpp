#include "interpose/output_file.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace hmshim::interpose {
namespace {

// Guests assume small numbers: shells and daemons close or reuse 3…255 by number, and select() ends at 1023.
constexpr int kLowestDescriptor = 300;

// Writing to a pipe without a reader raises SIGPIPE, writing past RLIMIT_FSIZE raises SIGXFSZ, and both kill by
// default. They are sent to the writing thread itself: blocked here, consumed if we caused them, they never reach the
// guest.
class WriteSignalsBlocked {
 public:
  WriteSignalsBlocked() noexcept {
    sigemptyset(&ours_);
    sigaddset(&ours_, SIGPIPE);
    sigaddset(&ours_, SIGXFSZ);
    sigpending(&before_);
    pthread_sigmask(SIG_BLOCK, &ours_, &mask_);
  }
  ~WriteSignalsBlocked() {
    sigset_t now;
    sigpending(&now);
    for (const int signal : {SIGPIPE, SIGXFSZ}) {
      if (sigismember(&now, signal) == 1 && sigismember(&before_, signal) == 0) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, signal);
        const timespec no_wait{};
        sigtimedwait(&one, nullptr, &no_wait);
      }
    }
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  WriteSignalsBlocked(const WriteSignalsBlocked&) = delete;
  WriteSignalsBlocked& operator=(const WriteSignalsBlocked&) = delete;

 private:
  sigset_t ours_;
  sigset_t before_;
  sigset_t mask_;
};

}  // namespace

int OutputFile::open_append(const char* path) noexcept {
  // Without O_NONBLOCK a FIFO that nobody reads would hold the guest for ever; it is refused with ENXIO instead.
  const int descriptor = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  if (descriptor >= 0) fcntl(descriptor, F_SETFL, O_APPEND);
  return take(descriptor);
}

int OutputFile::duplicate(int descriptor) noexcept { return take(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)); }

int OutputFile::take(int descriptor) noexcept {
  close();
  if (descriptor < 0) return errno;
  // Where the limit on descriptors is lower the number stays the low one.
  if (const int high = fcntl(descriptor, F_DUPFD_CLOEXEC, kLowestDescriptor); high >= 0) {
    ::close(descriptor);
    descriptor = high;
  }
  struct stat status {};
  if (fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    return error;
  }
  descriptor_ = descriptor;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  return 0;
}

bool OutputFile::is_ours() const noexcept {
  struct stat status {};
  return fstat(descriptor_, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

int OutputFile::write(std::string_view text) noexcept {
  if (!is_open()) return EBADF;
  if (!is_ours()) {
    descriptor_ = -1;  // the guest closed it: the number is no longer ours to close
    return EBADF;
  }
  const WriteSignalsBlocked blocked;
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (written == 0 || errno != EINTR) {
      const int error = written == 0 ? EIO : errno;
      close();
      return error;
    }
  }
  return 0;
}

void OutputFile::close() noexcept {
  if (is_open() && is_ours()) ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace hmshim::interpose
