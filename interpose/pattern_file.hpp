// The text of HMSHIM_PROFILE: the iterations that a run has learned, for the next run of the same program. One JSON
// object a line, after the manner of the traces of bench/README.md:
//
//   {"t":"h", "schema":1, "what":"hmshim profile", "patterns":1}
//   {"t":"P", "device":0, "launches":24, "extents":25}       then its extents and launches, in order
//   {"t":"T", "id":0, "bytes":8388608, "kind":"weight", "extent":3, "operand":1}
//   {"t":"T", "id":1, "bytes":8388608, "kind":"temporary", "born":0, "operand":0}
//   {"t":"K", "signature":"0123456789abcdef", "stream":0, "in":[1,0,null], "dur_us":400.125}
//
// `extent` is the number that the library gives an allocation, the lowest that is free: the same in every run that
// allocates in the same order. `operand` counts over the iteration's launches; null is Iteration's kUnplanned.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/pattern_recorder.hpp"

namespace hmshim::interpose {

struct LearnedPattern {
  std::uint16_t device = 0;
  std::shared_ptr<const policy::Iteration> iteration;
  std::vector<std::uint64_t> durations_ns;  // by launch
};

struct PatternFile {
  std::vector<LearnedPattern> patterns;  // none where there is a refusal
  std::string refusal;                   // what is wrong with the text, and in which line; empty when nothing is
  bool is_ours = false;                  // the text says that it is a profile, of a schema that we may replace
};

// Any text. Every iteration that it returns can be planned or is told impossible by the planner.
[[nodiscard]] PatternFile read_patterns(std::string_view text);
[[nodiscard]] std::string write_patterns(std::span<const LearnedPattern> patterns);

// Reads the file. One that does not exist has no patterns and may be written.
[[nodiscard]] PatternFile load_patterns(const std::string& path);
// Another file takes its place when it is complete: whoever reads sees the old one or the new one. Empty, or why it
// could not be written.
[[nodiscard]] std::string save_patterns(const std::string& path, std::span<const LearnedPattern> patterns);

}  // namespace hmshim::interpose
