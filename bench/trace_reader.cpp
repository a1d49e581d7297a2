#include "bench/trace_reader.hpp"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hmshim::bench {
namespace {

using TensorId = std::uint64_t;

struct Tensor {
  std::uint64_t bytes;
  bool is_weight;
};

struct Kernel {
  std::uint64_t duration_ns;
  std::map<TensorId, bool> is_written;
};

class Trace {
 public:
  void add(const nlohmann::json& record, const std::string& field) {
    const std::string type = record.at("t").get<std::string>();
    if (type == "T") {
      add_tensor(record);
    } else if (type == "K") {
      add_kernel(record, field);
    } else if (type != "h") {
      throw std::runtime_error("the type \"" + type + "\" is none of \"h\", \"T\" and \"K\"");
    }
  }

  // Extents are numbered by first touch. A tensor that no kernel touches is none.
  [[nodiscard]] policy::AccessPattern pattern() const {
    policy::AccessPattern result;
    std::unordered_map<TensorId, policy::PatternExtent> extents;
    std::vector<policy::ExtentTouch> touches;
    for (const Kernel& kernel : kernels_) {
      touches.clear();
      for (const auto& [id, is_written] : kernel.is_written) {
        if (!extents.contains(id)) {
          const Tensor& tensor = tensors_.at(id);
          extents[id] = result.add_extent(tensor.bytes, tensor.is_weight ? policy::kPersistent : result.launches());
        }
        touches.push_back({extents[id], is_written});
      }
      result.add_launch(kernel.duration_ns, touches);
    }
    return result;
  }

 private:
  void add_tensor(const nlohmann::json& record) {
    const auto id = record.at("id").get<TensorId>();
    const auto bytes = record.at("bytes").get<std::int64_t>();
    if (bytes <= 0) throw std::runtime_error("tensor " + std::to_string(id) + " has no bytes");
    if (!tensors_.try_emplace(id, Tensor{static_cast<std::uint64_t>(bytes), record.at("kind") == "weight"}).second) {
      throw std::runtime_error("tensor " + std::to_string(id) + " has been described before");
    }
  }

  void add_kernel(const nlohmann::json& record, const std::string& field) {
    const auto duration_us = record.at(field).get<double>();
    if (!(duration_us >= 0 && duration_us < 1e12)) throw std::runtime_error(field + " is outside 0 to 1e12 us");
    Kernel kernel{static_cast<std::uint64_t>(std::llround(duration_us * 1e3)), {}};
    const auto touch = [&](TensorId id, bool is_written) {
      if (!tensors_.contains(id)) throw std::runtime_error("no line above describes tensor " + std::to_string(id));
      kernel.is_written[id] |= is_written;
    };
    for (const nlohmann::json& id : record.at("in")) touch(id.get<TensorId>(), false);
    for (const nlohmann::json& id : record.at("out")) touch(id.get<TensorId>(), true);
    const auto workspace = record.find("workspace");
    if (workspace != record.end() && !workspace->is_null()) touch(workspace->get<TensorId>(), true);
    kernels_.push_back(std::move(kernel));
  }

  std::unordered_map<TensorId, Tensor> tensors_;
  std::vector<Kernel> kernels_;
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

policy::AccessPattern read_trace(const std::string& path, const std::string& field) {
  const std::string text = read_text(path);
  Trace trace;
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    ++number;
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.empty()) continue;
    try {
      trace.add(nlohmann::json::parse(line), field);
    } catch (const std::exception& error) {
      throw std::runtime_error(path + ":" + std::to_string(number) + ": " + error.what());
    }
  }
  policy::AccessPattern pattern = trace.pattern();
  if (pattern.launches() == 0) throw std::runtime_error(path + ": has no kernel");
  return pattern;
}

}  // namespace hmshim::bench
