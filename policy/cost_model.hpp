// Analytic cost of moving bytes. What the planner believes about the machine; nothing here is measured by itself.
#pragma once

#include <cmath>
#include <cstdint>

#include "policy/vocabulary.hpp"

namespace hmshim::policy {

enum class Direction : std::uint8_t { ToDevice, ToHost };

struct CostModel {
  double h2d_bytes_per_s;
  double d2h_bytes_per_s;
  // Host work that keeps a direction's only migrator thread busy besides the copy: per call and per VA block.
  std::uint64_t call_ns = 0;
  std::uint64_t block_ns = 0;
  // A piece may keep a valid host copy while it is on the device (read-mostly), so that dropping it moves no bytes.
  bool clean_copies = true;
  // Both directions at once. The driver's source allows it and warns of false dependencies (uvm_migrate.c).
  bool full_duplex = true;

  // No host cost: how good a plan is when only the link and the memory limit it.
  [[nodiscard]] static CostModel ideal(double bytes_per_s) { return {bytes_per_s, bytes_per_s}; }

  // Time that one migration of `bytes` occupies its direction. The bytes must not be zero.
  [[nodiscard]] std::uint64_t transfer_ns(Direction direction, std::uint64_t bytes) const {
    const double rate = direction == Direction::ToDevice ? h2d_bytes_per_s : d2h_bytes_per_s;
    const auto copy_ns = static_cast<std::uint64_t>(std::ceil(static_cast<double>(bytes) * 1e9 / rate));
    return call_ns + block_ns * (round_up_to_block(bytes) / kBlockBytes) + copy_ns;
  }
};

}  // namespace hmshim::policy
