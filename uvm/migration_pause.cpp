#include "uvm/migration_pause.hpp"

#include <chrono>
#include <thread>

namespace hmshim::uvm {

namespace {

constexpr std::chrono::microseconds kPoll{50};
// A call of at most kMostBytesPerCall takes a few milliseconds, the fork of a large process tens.
constexpr std::chrono::milliseconds kPatience{100};

template <class Condition>
void wait_until(Condition is_met) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!is_met() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kPoll);
}

}  // namespace

constinit MigrationPause migration_pause;

void MigrationPause::begin(const DriverApi& api) noexcept {
  forks_.fetch_add(1);
  const auto is_quiet = [this] { return calls_.load() == 0; };
  if (is_quiet()) return;
  if (api.simgpu_begin_external_wait != nullptr) api.simgpu_begin_external_wait();
  wait_until(is_quiet);
  if (api.simgpu_end_external_wait != nullptr) api.simgpu_end_external_wait();
}

void MigrationPause::enter() noexcept {
  calls_.fetch_add(1);
  if (forks_.load() == 0) return;
  calls_.fetch_sub(1);
  wait_until([this] { return forks_.load() == 0; });
  calls_.fetch_add(1);
}

}  // namespace hmshim::uvm
