#include "bench/trace_reader.hpp"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace hmshim::bench {
namespace {

// Of the format: one iteration, where tensors live from touch to touch; and a recording, where they are born and die by
// lines of their own. A header without the key is of the first.
constexpr int kIteration = 1;
constexpr int kRecording = 2;

// What is no weight lives from its first touch to its last.
std::vector<TraceStep> steps_from_touches(const Trace& trace) {
  constexpr std::size_t kNever = ~std::size_t{0};
  std::vector<std::size_t> first(trace.tensors.size(), kNever), last(trace.tensors.size(), kNever);
  for (std::size_t launch = 0; launch < trace.launches.size(); ++launch) {
    for (const TraceOperand& operand : trace.launches[launch].operands) {
      first[operand.tensor] = std::min(first[operand.tensor], launch);
      last[operand.tensor] = launch;
    }
  }
  std::vector<std::vector<std::uint32_t>> dying(trace.launches.size());
  for (std::uint32_t tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (!trace.tensors[tensor].is_weight && last[tensor] != kNever) dying[last[tensor]].push_back(tensor);
  }
  std::vector<TraceStep> steps;
  for (std::uint32_t launch = 0; launch < trace.launches.size(); ++launch) {
    for (const TraceOperand& operand : trace.launches[launch].operands) {
      if (!trace.tensors[operand.tensor].is_weight && first[operand.tensor] == launch)
        steps.push_back({TraceStep::Kind::Birth, operand.tensor});
    }
    steps.push_back({TraceStep::Kind::Launch, launch});
    for (const std::uint32_t tensor : dying[launch]) steps.push_back({TraceStep::Kind::Death, tensor});
  }
  return steps;
}

class Reader {
 public:
  explicit Reader(const std::string& field) : field_(field) {}

  void add(const nlohmann::json& record) {
    const std::string type = record.at("t").get<std::string>();
    if (type == "T") {
      add_tensor(record);
    } else if (type == "K") {
      add_launch(record);
    } else if (type == "h") {
      read_header(record);
    } else if (type == "F" && trace_.is_recording) {
      add_death(record);
    } else if (type == "S" && trace_.is_recording) {
      trace_.steps.push_back({TraceStep::Kind::Wait, 0});
    } else if (type != "E" || !trace_.is_recording) {
      throw std::runtime_error("the type \"" + type + "\" is not known" +
                               (trace_.is_recording ? "" : "; without schema 2 there are \"h\", \"T\" and \"K\""));
    }
  }

  [[nodiscard]] Trace take() {
    if (trace_.is_recording) {
      for (std::uint32_t tensor = 0; tensor < trace_.tensors.size(); ++tensor) {
        if (is_alive_[tensor]) trace_.steps.push_back({TraceStep::Kind::Death, tensor});
      }
    } else {
      trace_.steps = steps_from_touches(trace_);
    }
    trace_.steps.push_back({TraceStep::Kind::Wait, 0});
    return std::move(trace_);
  }

 private:
  void read_header(const nlohmann::json& record) {
    trace_.workload = record.value("workload", "");
    const int schema = record.value("schema", kIteration);
    if (schema != kIteration && schema != kRecording)
      throw std::runtime_error("schema " + std::to_string(schema) +
                               " is not known; this program reads schemas 1 and 2");
    if (!trace_.tensors.empty()) throw std::runtime_error("there is more than one recording in the file");
    trace_.is_recording = schema == kRecording;
  }

  void add_tensor(const nlohmann::json& record) {
    const auto id = record.at("id").get<std::uint64_t>();
    const auto bytes = record.at("bytes").get<std::int64_t>();
    if (bytes <= 0) throw std::runtime_error("tensor " + std::to_string(id) + " has no bytes");
    if (!by_id_.try_emplace(id, static_cast<std::uint32_t>(trace_.tensors.size())).second) {
      throw std::runtime_error("tensor " + std::to_string(id) + " has been described before");
    }
    const bool is_weight = !trace_.is_recording && record.at("kind") == "weight";
    trace_.tensors.push_back({id, static_cast<std::uint64_t>(bytes), is_weight});
    is_alive_.push_back(true);
    if (trace_.is_recording) add_step(TraceStep::Kind::Birth, trace_.tensors.size() - 1);
  }

  void add_death(const nlohmann::json& record) {
    const std::uint32_t tensor = tensor_of(record.at("id"));
    is_alive_[tensor] = false;
    add_step(TraceStep::Kind::Death, tensor);
  }

  // A tensor that is alive.
  [[nodiscard]] std::uint32_t tensor_of(const nlohmann::json& id) const {
    const auto tensor = by_id_.find(id.get<std::uint64_t>());
    if (tensor == by_id_.end()) throw std::runtime_error("no line above describes tensor " + id.dump());
    if (!is_alive_[tensor->second]) throw std::runtime_error("tensor " + id.dump() + " is dead");
    return tensor->second;
  }

  void add_step(TraceStep::Kind kind, std::size_t index) {
    trace_.steps.push_back({kind, static_cast<std::uint32_t>(index)});
  }

  void add_launch(const nlohmann::json& record) {
    const auto duration_us = record.at(field_).get<double>();
    if (!(duration_us >= 0 && duration_us < 1e12)) throw std::runtime_error(field_ + " is outside 0 to 1e12 us");
    TraceLaunch launch{record.value("name", ""), static_cast<std::uint64_t>(std::llround(duration_us * 1e3)), {}};
    const auto touch = [&](const nlohmann::json& id, bool is_written) {
      const std::uint32_t tensor = tensor_of(id);
      const auto known = std::find_if(launch.operands.begin(), launch.operands.end(),
                                      [&](const TraceOperand& operand) { return operand.tensor == tensor; });
      if (known == launch.operands.end()) {
        launch.operands.push_back({tensor, !is_written, is_written});
      } else {
        known->is_read |= !is_written;
        known->is_written |= is_written;
      }
    };
    for (const nlohmann::json& id : record.at("in")) touch(id, false);
    for (const nlohmann::json& id : record.at("out")) touch(id, true);
    const auto workspace = record.find("workspace");
    if (workspace != record.end() && !workspace->is_null()) touch(*workspace, true);
    trace_.launches.push_back(std::move(launch));
    if (trace_.is_recording) add_step(TraceStep::Kind::Launch, trace_.launches.size() - 1);
  }

  const std::string& field_;
  Trace trace_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_id_;
  std::vector<bool> is_alive_;
};

std::string read_text(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw std::runtime_error(path + ": cannot be opened");
  std::string text;
  char buffer[1 << 16];
  int length = 0;
  while ((length = gzread(file.get(), buffer, sizeof buffer)) > 0)
    text.append(buffer, static_cast<std::size_t>(length));
  if (length < 0 || !gzeof(file.get())) throw std::runtime_error(path + ": cannot be read or is damaged");
  return text;
}

}  // namespace

std::uint64_t Trace::compute_ns() const {
  std::uint64_t total_ns = 0;
  for (const TraceLaunch& launch : launches) total_ns += launch.duration_ns;
  return total_ns;
}

std::uint64_t Trace::peak_live_bytes() const {
  std::vector<bool> is_touched(tensors.size());
  for (const TraceLaunch& launch : launches) {
    for (const TraceOperand& operand : launch.operands) is_touched[operand.tensor] = true;
  }
  std::uint64_t live_bytes = 0;
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    if (tensors[tensor].is_weight && is_touched[tensor]) live_bytes += tensors[tensor].bytes;
  }
  std::uint64_t peak_bytes = live_bytes;
  for (const TraceStep& step : steps) {
    if (step.kind == TraceStep::Kind::Birth) live_bytes += tensors[step.index].bytes;
    if (step.kind == TraceStep::Kind::Death) live_bytes -= tensors[step.index].bytes;
    peak_bytes = std::max(peak_bytes, live_bytes);
  }
  return peak_bytes;
}

Trace read_trace(const std::string& path, const std::string& field) {
  const std::string text = read_text(path);
  Reader reader(field);
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    ++number;
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.empty()) continue;
    try {
      reader.add(nlohmann::json::parse(line));
    } catch (const std::exception& error) {
      throw std::runtime_error(path + ":" + std::to_string(number) + ": " + error.what());
    }
  }
  Trace trace = reader.take();
  if (trace.launches.empty()) throw std::runtime_error(path + ": has no kernel");
  return trace;
}

policy::AccessPattern pattern_of(const Trace& trace) {
  policy::AccessPattern pattern;
  std::vector<std::int64_t> extents(trace.tensors.size(), -1);
  std::vector<policy::ExtentTouch> touches;
  for (const TraceLaunch& launch : trace.launches) {
    touches.clear();
    for (const TraceOperand& operand : launch.operands) {
      std::int64_t& extent = extents[operand.tensor];
      if (extent < 0) {
        const TraceTensor& tensor = trace.tensors[operand.tensor];
        extent = pattern.add_extent(tensor.bytes, tensor.is_weight ? policy::kPersistent : pattern.launches());
      }
      touches.push_back({static_cast<policy::PatternExtent>(extent), operand.is_written});
    }
    pattern.add_launch(launch.duration_ns, touches);
  }
  return pattern;
}

}  // namespace hmshim::bench
