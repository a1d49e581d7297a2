#include "policy/lifetimes.hpp"

namespace hmshim::policy {

namespace {

// What lives longer than two iterations outlives them all: gradients that are kept until the next backward pass do not.
constexpr std::uint64_t kLongLivedIterations = 2;
// A kernel's scratch memory is written, read and dropped; a layer's activations wait for the backward pass.
constexpr std::uint64_t kWorkspaceLaunches = 8;

}  // namespace

std::string_view to_string(LifetimeClass lifetime) noexcept {
  switch (lifetime) {
    case LifetimeClass::Weights:
      return "weights";
    case LifetimeClass::OptimizerState:
      return "optimizer_state";
    case LifetimeClass::Gradients:
      return "gradients";
    case LifetimeClass::Activations:
      return "activations";
    case LifetimeClass::Workspace:
      return "workspace";
  }
  return "unknown";
}

LifetimeClass Lifetimes::class_of(const Life& life, std::uint64_t now, std::uint64_t period_launches) noexcept {
  const std::uint64_t iterations = period_launches == 0 ? 0 : (now - life.born) / period_launches;
  if (iterations >= kLongLivedIterations)
    return life.touches * 2 > iterations * 3 ? LifetimeClass::Weights : LifetimeClass::OptimizerState;
  if (life.last - life.first < kWorkspaceLaunches) return LifetimeClass::Workspace;
  return life.is_last_with_state ? LifetimeClass::Gradients : LifetimeClass::Activations;
}

void Lifetimes::count(LifetimeTallies& tallies, const Life& life, LifetimeClass lifetime) noexcept {
  LifetimeTally& tally = tallies[static_cast<std::size_t>(lifetime)];
  ++tally.extents;
  tally.bytes += life.bytes;
  tally.migrated_bytes += life.migrated_bytes;
}

void Lifetimes::began(ExtentId extent, std::uint64_t bytes, std::uint64_t launch) {
  if (extent >= lives_.size()) lives_.resize(std::size_t{extent} + 1);
  lives_[extent] = {.bytes = bytes, .born = launch};
}

void Lifetimes::launched(std::span<const ExtentId> touched, std::uint64_t launch, std::uint64_t period_launches) {
  bool has_state = false;
  for (const ExtentId extent : touched) {
    if (!is_alive(extent)) continue;
    Life& life = lives_[extent];
    if (life.touches > 0 && life.last == launch) continue;  // named twice
    if (life.touches == 0) life.first = launch;
    life.last = launch;
    ++life.touches;
    has_state |= class_of(life, launch, period_launches) == LifetimeClass::OptimizerState;
  }
  for (const ExtentId extent : touched) {
    if (is_alive(extent)) lives_[extent].is_last_with_state = has_state;
  }
}

void Lifetimes::migrated(ExtentId extent, std::uint64_t bytes) noexcept {
  if (is_alive(extent)) lives_[extent].migrated_bytes += bytes;
}

void Lifetimes::ended(ExtentId extent, std::uint64_t now, std::uint64_t period_launches) noexcept {
  if (!is_alive(extent)) return;
  count(ended_, lives_[extent], class_of(lives_[extent], now, period_launches));
  lives_[extent] = {};
}

LifetimeTallies Lifetimes::tallies(std::uint64_t now, std::uint64_t period_launches) const noexcept {
  LifetimeTallies tallies = ended_;
  for (const Life& life : lives_) {
    if (life.bytes != 0) count(tallies, life, class_of(life, now, period_launches));
  }
  return tallies;
}

}  // namespace hmshim::policy
