// Reads a training trace (format: bench/README.md): one iteration of launches and the tensors they touch, or a
// recording of a whole program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/access_pattern.hpp"

namespace hmshim::bench {

struct TraceTensor {
  std::uint64_t id;  // in the file
  std::uint64_t bytes;
  bool is_weight;  // lives for ever; others from their birth to their death
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

struct TraceStep {
  enum class Kind : std::uint8_t { Birth, Death, Launch, Wait };
  Kind kind;
  std::uint32_t index;  // of the tensor or the launch
};

struct Trace {
  std::string workload;  // of the header; may be empty
  bool is_recording = false;
  std::vector<TraceTensor> tensors;
  std::vector<TraceLaunch> launches;
  // In order. Weights are neither born nor die; after the last step nothing else is alive.
  std::vector<TraceStep> steps;

  [[nodiscard]] std::uint64_t compute_ns() const;
  // The most bytes that are alive at one time, weights that no launch touches aside.
  [[nodiscard]] std::uint64_t peak_live_bytes() const;
};

// `path` is JSON lines, gzip'd or not. `field` is the key of the launches' durations, in microseconds.
// Throws std::runtime_error naming the file, the line and what is wrong there.
[[nodiscard]] Trace read_trace(const std::string& path, const std::string& field);

// The pattern that the library would learn from it. Extents are numbered by first touch; a tensor that no launch
// touches is none.
[[nodiscard]] policy::AccessPattern pattern_of(const Trace& trace);

}  // namespace hmshim::bench
