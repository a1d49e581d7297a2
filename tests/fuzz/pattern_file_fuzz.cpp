// Any text as a profile: it is refused with one line, or what was read can be planned, and written and read again is
// the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "interpose/pattern_file.hpp"
#include "policy/learned_plan.hpp"

using namespace hmshim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const interpose::PatternFile file = interpose::read_patterns({reinterpret_cast<const char*>(data), bytes});
  if (!file.refusal.empty()) {
    if (!file.patterns.empty() || file.refusal.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const std::string text = interpose::write_patterns(file.patterns);
  const interpose::PatternFile again = interpose::read_patterns(text);
  if (!again.refusal.empty() || interpose::write_patterns(again.patterns) != text) std::abort();
  for (const interpose::LearnedPattern& pattern : file.patterns) {
    static_cast<void>(policy::make_steps(*pattern.iteration, pattern.durations_ns, std::uint64_t{1} << 30));
  }
  return 0;
}
