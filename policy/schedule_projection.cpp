#include "policy/schedule_projection.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace hmshim::policy {

Projection::Projection(const std::vector<std::uint64_t>& bytes)
    : launches_(bytes.size()), leaves_(std::bit_ceil(bytes.size())), nodes_(2 * leaves_) {
  for (std::size_t k = 0; k < launches_; ++k) nodes_[leaves_ + k].max = static_cast<std::int64_t>(bytes[k]);
  for (std::size_t node = leaves_; --node > 0;) pull(node);
}

void Projection::add(Tick begin, Tick end, std::int64_t bytes) {
  if (begin >= end) return;
  const std::size_t first = begin % launches_, last = first + (end - begin);
  add_leaves(first, std::min(last, launches_), bytes);
  if (last > launches_) add_leaves(0, last - launches_, bytes);
}

std::int64_t Projection::max(Tick begin, Tick end) const {
  if (begin >= end) return 0;
  const std::size_t first = begin % launches_, last = first + (end - begin);
  const std::int64_t head = max_leaves(first, std::min(last, launches_));
  return last > launches_ ? std::max(head, max_leaves(0, last - launches_)) : head;
}

void Projection::set(Tick tick, std::uint64_t bytes) {
  add(tick, tick + 1, static_cast<std::int64_t>(bytes) - max(tick, tick + 1));
}

void Projection::pull(std::size_t node) {
  nodes_[node].max = std::max(nodes_[2 * node].max, nodes_[2 * node + 1].max) + nodes_[node].add;
}

// Bottom-up: the nodes that make up the range hang to the right of its left border's path to the root and to the left
// of its right border's.
void Projection::add_leaves(std::size_t begin, std::size_t end, std::int64_t bytes) {
  const auto apply = [&](Node& node) {
    node.max += bytes;
    node.add += bytes;
  };
  std::size_t left = begin + leaves_, right = end + leaves_;
  const std::size_t first = left, last = right - 1;
  for (; left < right; left /= 2, right /= 2) {
    if (left % 2 == 1) apply(nodes_[left++]);
    if (right % 2 == 1) apply(nodes_[--right]);
  }
  for (std::size_t node = first / 2; node > 0; node /= 2) pull(node);
  for (std::size_t node = last / 2; node > 0; node /= 2) pull(node);
}

std::int64_t Projection::max_leaves(std::size_t begin, std::size_t end) const {
  // Far from the end of the type: adds are put on top before anything is found.
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min() / 2;
  std::int64_t from_left = kNone, from_right = kNone;
  std::size_t left = begin + leaves_, right = end + leaves_;
  std::size_t left_path = left, right_path = right - 1;
  while (left_path > 0) {
    if (left < right) {
      if (left % 2 == 1) from_left = std::max(from_left, nodes_[left++].max);
      if (right % 2 == 1) from_right = std::max(from_right, nodes_[--right].max);
      left /= 2;
      right /= 2;
    }
    left_path /= 2;
    right_path /= 2;
    from_left += nodes_[left_path].add;  // node 0 is nobody's ancestor and stays zero
    from_right += nodes_[right_path].add;
  }
  return std::max(from_left, from_right);
}

}  // namespace hmshim::policy
