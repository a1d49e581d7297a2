// Bytes expected on the device at each launch of the coming iteration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/vocabulary.hpp"

namespace hmshim::policy {

// A segment tree (range add, range maximum, both O(log launches)) addressed by absolute ticks. A tick's leaf is its
// launch's, so ranges are at most one iteration long.
class Projection {
 public:
  explicit Projection(const std::vector<std::uint64_t>& bytes);

  // Over the launches [begin, end); the maximum of none is 0.
  void add(Tick begin, Tick end, std::int64_t bytes);
  [[nodiscard]] std::int64_t max(Tick begin, Tick end) const;
  void set(Tick tick, std::uint64_t bytes);

 private:
  // `add` holds for every leaf below the node and is contained in its `max`.
  struct Node {
    std::int64_t max = 0;
    std::int64_t add = 0;
  };
  void add_leaves(std::size_t begin, std::size_t end, std::int64_t bytes);
  [[nodiscard]] std::int64_t max_leaves(std::size_t begin, std::size_t end) const;
  void pull(std::size_t node);

  std::size_t launches_;
  std::size_t leaves_;
  std::vector<Node> nodes_;  // a heap: the root is 1, the leaves begin at leaves_
};

}  // namespace hmshim::policy
