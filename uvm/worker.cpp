#include "uvm/worker.hpp"

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

namespace hmshim::uvm {

namespace {

constexpr std::chrono::milliseconds kPatience{1000};

}  // namespace

void Worker::start(std::function<void()> body) {
  if (api_.simgpu_register_agent != nullptr) agent_ = api_.simgpu_register_agent(name_);
  // The new thread inherits the mask: no signal of the guest's may be delivered to it.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this, run = std::move(body)] {
      if (api_.simgpu_attach_agent != nullptr) api_.simgpu_attach_agent(agent_);
      run();
      if (api_.simgpu_detach_agent != nullptr) api_.simgpu_detach_agent();
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
      changed_.notify_all();
    });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Worker::ring() noexcept {
  if (api_.simgpu_wake_agent != nullptr) {
    api_.simgpu_wake_agent(agent_);
    return;
  }
  const std::lock_guard lock(mutex_);
  is_rung_ = true;
  changed_.notify_all();
}

void Worker::stop() noexcept {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  if (api_.simgpu_wake_agent != nullptr) api_.simgpu_wake_agent(agent_);
  if (api_.simgpu_begin_external_wait != nullptr) api_.simgpu_begin_external_wait();
  bool has_ended = false;
  {
    std::unique_lock lock(mutex_);
    has_ended = changed_.wait_for(lock, kPatience, [this] { return has_ended_; });
  }
  has_ended ? thread_.join() : thread_.detach();
  if (api_.simgpu_end_external_wait != nullptr) api_.simgpu_end_external_wait();
}

bool Worker::is_stopping() const noexcept {
  const std::lock_guard lock(mutex_);
  return is_stopping_;
}

void Worker::wait() { watch({}, {}, 0); }

void Worker::watch(std::span<const std::uint32_t> words, std::span<const std::uint32_t> seen, std::uint64_t most_ns) {
  if (api_.simgpu_watch != nullptr) {
    const std::uint64_t deadline_ns = most_ns == 0 ? 0 : api_.now_ns() + most_ns;
    if (!is_stopping()) api_.simgpu_watch(words.data(), seen.data(), words.size_bytes(), deadline_ns);
    return;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(most_ns);
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return is_rung_ || is_stopping_; };
  while (!is_over() && (most_ns == 0 || std::chrono::steady_clock::now() < end)) {
    if (words.empty()) {
      changed_.wait(lock, is_over);
    } else if (std::memcmp(words.data(), seen.data(), words.size_bytes()) != 0) {
      break;
    } else {
      changed_.wait_for(lock, std::chrono::nanoseconds(kPollNs), is_over);
    }
  }
  is_rung_ = false;
}

void Worker::take_turn() const noexcept {
  if (api_.simgpu_take_turn != nullptr) api_.simgpu_take_turn();
}

}  // namespace hmshim::uvm
