// Reads a training trace (format: bench/README.md): one iteration of launches and the tensors they touch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/access_pattern.hpp"

namespace hmshim::bench {

struct TraceTensor {
  std::uint64_t id;  // in the file
  std::uint64_t bytes;
  bool is_weight;  // lives for ever; others from their first touch in the iteration to their last
};

struct TraceOperand {
  std::uint32_t tensor;  // index into Trace::tensors
  bool is_read;
  bool is_written;
};

struct TraceLaunch {
  std::string name;
  std::uint64_t duration_ns;
  std::vector<TraceOperand> operands;  // each tensor once, in the order in which the line names them
};

struct Trace {
  std::string workload;  // of the header; may be empty
  std::vector<TraceTensor> tensors;
  std::vector<TraceLaunch> launches;

  [[nodiscard]] std::uint64_t compute_ns() const;
  // The most bytes that are alive in one launch: weights always, others from first to last touch.
  [[nodiscard]] std::uint64_t peak_live_bytes() const;
  // What a launch gives birth to and what dies with it, as indices into `tensors`. Weights are in neither.
  struct Lifetimes {
    std::vector<std::vector<std::uint32_t>> born;
    std::vector<std::vector<std::uint32_t>> dying;
  };
  [[nodiscard]] Lifetimes lifetimes() const;
};

// `path` is JSON lines, gzip'd or not. `field` is the key of the launches' durations, in microseconds.
// Throws std::runtime_error naming the file, the line and what is wrong there.
[[nodiscard]] Trace read_trace(const std::string& path, const std::string& field);

// The pattern that the library would learn from it. Extents are numbered by first touch; a tensor that no launch
// touches is none.
[[nodiscard]] policy::AccessPattern pattern_of(const Trace& trace);

}  // namespace hmshim::bench
