// A thread of the library's own. The guest does not notice it: it takes no signal, and waits on the host for what it
// has to do. On the simulated GPU it is an agent, whose waits and turns are part of virtual time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>

#include "uvm/driver_api.hpp"

namespace hmshim::uvm {

class Worker {
 public:
  // `name` must outlive the worker.
  Worker(const DriverApi& api, const char* name) : api_(api), name_(name) {}
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // ---- by others. None may be called with a lock held that the worker takes.

  // `body` runs in the new thread until it returns, which it does soon after is_stopping(). Throws std::system_error.
  void start(std::function<void()> body);
  [[nodiscard]] bool is_started() const noexcept { return thread_.joinable(); }
  // Ends the worker's wait; one that comes early is kept.
  void ring() noexcept;
  // Asks the worker to end and waits for it, but not long: it may sit in a driver that will not return any more. Then
  // it is left to itself.
  void stop() noexcept;

  // ---- by the worker itself

  [[nodiscard]] bool is_stopping() const noexcept;
  void wait();
  // Until the words are no longer as `seen`, a ring, or `most_ns` have passed (0: no limit). Looks every kPollNs: words
  // are written by the device, which tells nobody.
  void watch(std::span<const std::uint32_t> words, std::span<const std::uint32_t> seen, std::uint64_t most_ns);
  // Before touching what it shares with others, after anything that the worker waited for.
  void take_turn() const noexcept;

 private:
  static constexpr std::uint64_t kPollNs = 100'000;

  const DriverApi& api_;
  const char* const name_;
  unsigned agent_ = 0;
  std::thread thread_;
  mutable std::mutex mutex_;  // leaf lock; guards what follows
  std::condition_variable changed_;
  bool is_rung_ = false;
  bool is_stopping_ = false;
  bool has_ended_ = false;
};

}  // namespace hmshim::uvm
