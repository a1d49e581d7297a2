// What extents are to a training program, told from how long they live and how often they are used: for the report, so
// that a reader sees which kind of data travels. No decision rests on it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policy/vocabulary.hpp"

namespace hmshim::policy {

enum class LifetimeClass : std::uint8_t {
  Weights,         // live across iterations, used several times in each
  OptimizerState,  // live across iterations, used once in each
  Gradients,       // die within an iteration or the next; used last together with optimizer state
  Activations,     // die within an iteration, after a pause
  Workspace,       // all uses within a few launches
};
inline constexpr std::size_t kLifetimeClasses = 5;

[[nodiscard]] std::string_view to_string(LifetimeClass lifetime) noexcept;

// Each life of an extent counts: an activation of 8 MiB over 10 iterations is 10 extents of 80 MiB.
struct LifetimeTally {
  std::uint64_t extents = 0;
  std::uint64_t bytes = 0;
  std::uint64_t migrated_bytes = 0;  // both directions
};
using LifetimeTallies = std::array<LifetimeTally, kLifetimeClasses>;

class Lifetimes {
 public:
  // `launch` and `now` are launch ordinals; `period_launches` is 0 as long as none is known.
  void began(ExtentId extent, std::uint64_t bytes, std::uint64_t launch);
  void launched(std::span<const ExtentId> touched, std::uint64_t launch, std::uint64_t period_launches);
  void migrated(ExtentId extent, std::uint64_t bytes) noexcept;
  void ended(ExtentId extent, std::uint64_t now, std::uint64_t period_launches) noexcept;

  // Of the lives that have ended and of those that have not.
  [[nodiscard]] LifetimeTallies tallies(std::uint64_t now, std::uint64_t period_launches) const noexcept;

 private:
  struct Life {
    std::uint64_t bytes = 0;  // 0: not alive
    std::uint64_t born = 0;
    std::uint64_t first = 0;  // touch
    std::uint64_t last = 0;
    std::uint64_t touches = 0;
    std::uint64_t migrated_bytes = 0;
    bool is_last_with_state = false;
  };
  [[nodiscard]] static LifetimeClass class_of(const Life& life, std::uint64_t now,
                                              std::uint64_t period_launches) noexcept;
  static void count(LifetimeTallies& tallies, const Life& life, LifetimeClass lifetime) noexcept;
  [[nodiscard]] bool is_alive(ExtentId extent) const noexcept {
    return extent < lives_.size() && lives_[extent].bytes != 0;
  }

  std::vector<Life> lives_;
  LifetimeTallies ended_;
};

}  // namespace hmshim::policy
