// Plays what others have published on the model of the machine alone, without the library: a sweep over footprints, and
// two policies that G10's simulator compares itself with. Prints one JSON object a point. See scripts/validate.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <iostream>
#include <list>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/trace_reader.hpp"
#include "tests/simgpu/model/model.hpp"

namespace hmshim::bench {
namespace {

using simgpu::Access;
using simgpu::AccessKind;
using simgpu::Model;
using simgpu::StreamId;
using simgpu::TimeNs;

constexpr const char* kUsage =
    "usage: validate_model sweep PROFILE BUSY_MS FACTOR...  writes FACTOR x capacity of managed memory again and "
    "again;\n"
    "                                                       a pass that misses nothing takes BUSY_MS at factor 1\n"
    "       validate_model base_uvm PROFILE TRACE           demand paging; tensors keep their addresses, dead or not\n"
    "       validate_model deepum_plus PROFILE TRACE        G10's model of DeepUM\n"
    "  PROFILE  a path\n"
    "  TRACE    JSON lines, gzip'd or not (bench/README.md)\n";

void check(simgpu::Status status, const char* what) {
  if (status != simgpu::Status::kOk) throw std::runtime_error(std::string(what) + ": " + to_string(status));
}

class Machine {
 public:
  explicit Machine(const std::string& profile_path)
      : model_({.profile = simgpu::load_profile(profile_path), .on_stall = {}}) {}

  Model& model() { return model_; }
  [[nodiscard]] std::uint64_t capacity_bytes() const { return model_.profile().capacity_bytes; }
  [[nodiscard]] TimeNs now() const { return model_.now(); }
  StreamId new_stream() {
    StreamId stream = 0;
    check(model_.create_stream(0, simgpu::StreamKind::kNonBlocking, &stream), "stream");
    return stream;
  }
  simgpu::EventId new_event() {
    simgpu::EventId event = 0;
    check(model_.create_event(0, &event), "event");
    return event;
  }
  std::uint64_t managed(std::uint64_t bytes) {
    std::uint64_t address = 0;
    check(model_.allocate_managed(0, bytes, &address), "managed allocation");
    return address;
  }
  void launch(StreamId stream, std::vector<Access> accesses, TimeNs duration_ns) {
    check(model_.launch(stream, {std::move(accesses), duration_ns, nullptr}), "launch");
  }
  void synchronize() { check(model_.synchronize_device(0), "synchronisation"); }

 private:
  Model model_;
};

// ---- the sweep

// The time of one pass in the steady state. One pass in order: a program that reads one word of each page makes the
// driver move the same blocks.
TimeNs sweep_ns(const std::string& profile, double factor, double busy_ms) {
  constexpr int kPasses = 3;  // the first populates, the second fills the host
  Machine machine(profile);
  const auto bytes = static_cast<std::uint64_t>(factor * static_cast<double>(machine.capacity_bytes()));
  const std::uint64_t buffer = machine.managed(bytes);
  const StreamId stream = machine.new_stream();
  TimeNs began_ns = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    began_ns = machine.now();
    machine.launch(stream, {{buffer, bytes, AccessKind::kReadWrite}}, static_cast<TimeNs>(busy_ms * factor * 1e6));
    machine.synchronize();
  }
  return machine.now() - began_ns;
}

// ---- demand paging

AccessKind kind_of(const TraceOperand& operand) {
  if (!operand.is_written) return AccessKind::kRead;
  return operand.is_read ? AccessKind::kReadWrite : AccessKind::kWrite;
}

// "Base UVM" of G10: no tensor is ever freed, so what is dead leaves and comes back like everything else. The second
// iteration, as there.
TimeNs base_uvm_ns(const std::string& profile, const Trace& trace) {
  Machine machine(profile);
  std::vector<std::uint64_t> addresses;
  for (const TraceTensor& tensor : trace.tensors) addresses.push_back(machine.managed(tensor.bytes));
  const StreamId stream = machine.new_stream();
  TimeNs began_ns = 0;
  for (int iteration = 0; iteration < 2; ++iteration) {
    began_ns = machine.now();
    for (const TraceLaunch& launch : trace.launches) {
      std::vector<Access> accesses;
      for (const TraceOperand& operand : launch.operands)
        accesses.push_back({addresses[operand.tensor], trace.tensors[operand.tensor].bytes, kind_of(operand)});
      machine.launch(stream, std::move(accesses), static_cast<TimeNs>(launch.duration_ns));
    }
    machine.synchronize();
  }
  return machine.now() - began_ns;
}

// ---- DeepUM+

// G10's model of DeepUM: when a kernel begins, whatever it and the next seven touch is fetched; victims are what came
// to the device longest ago and those kernels do not touch. What is dead keeps its place in that order, and is dropped
// without a copy when its turn comes. Migrations are explicit copies here, both directions at once: the stock driver
// has no such order.
class DeepumPlus {
 public:
  DeepumPlus(Machine& machine, const Trace& trace);
  void play_iteration();

 private:
  static constexpr std::size_t kDegree = 8;  // prefetch_degree of G10's configurations

  struct Tensor {
    std::uint64_t resident_bytes = 0;
    std::uint64_t host_bytes = 0;  // what must be copied to have it whole
    std::size_t first = 0;         // launches; weights are always alive
    std::size_t last = 0;
    std::uint64_t needed_in = 0;  // ordinal of the last launch that touches it
    std::uint64_t window_of = 0;  // ordinal of the last launch that saw it ahead
    simgpu::EventId arrival = 0;
    std::list<std::uint32_t>::iterator place{};  // valid while resident
  };

  [[nodiscard]] const TraceLaunch& launch_ahead(std::size_t launch, std::size_t ahead) const {
    return trace_.launches[(launch + ahead) % trace_.launches.size()];
  }
  [[nodiscard]] bool is_alive(std::uint32_t tensor, std::size_t launch) const {
    return trace_.tensors[tensor].is_weight || (tensors_[tensor].first <= launch && launch <= tensors_[tensor].last);
  }
  bool fetch(std::uint32_t tensor, std::size_t launch, bool is_needed);
  bool make_room(std::uint64_t bytes, std::size_t launch, bool is_needed);
  void copy(StreamId stream, bool is_to_device, std::uint64_t bytes);
  void let_wait(StreamId stream, StreamId for_what, simgpu::EventId event);

  Machine& machine_;
  const Trace& trace_;
  const StreamId compute_, coming_, leaving_;
  simgpu::EventId turn_ = 0;
  std::uint64_t staging_ = 0;  // device memory that stands for all: only the link is used
  std::uint64_t free_bytes_;
  std::uint64_t ordinal_ = 0;
  std::vector<Tensor> tensors_;
  std::list<std::uint32_t> line_;  // resident tensors, who came first at the front
};

DeepumPlus::DeepumPlus(Machine& machine, const Trace& trace)
    : machine_(machine),
      trace_(trace),
      compute_(machine.new_stream()),
      coming_(machine.new_stream()),
      leaving_(machine.new_stream()),
      free_bytes_(machine.capacity_bytes()),
      tensors_(trace.tensors.size()) {
  turn_ = machine.new_event();
  for (Tensor& tensor : tensors_) {
    tensor.arrival = machine.new_event();
    tensor.first = trace.launches.size();
  }
  std::uint64_t most_bytes = 0;
  for (std::size_t launch = 0; launch < trace.launches.size(); ++launch) {
    for (const TraceOperand& operand : trace.launches[launch].operands) {
      Tensor& tensor = tensors_[operand.tensor];
      tensor.first = std::min(tensor.first, launch);
      tensor.last = launch;
      most_bytes = std::max(most_bytes, trace.tensors[operand.tensor].bytes);
    }
  }
  check(machine.model().allocate_device(0, most_bytes, &staging_), "device allocation");
}

void DeepumPlus::copy(StreamId stream, bool is_to_device, std::uint64_t bytes) {
  constexpr std::uint64_t kHostAddress = simgpu::kBlockBytes;  // never touched: the copies have no effect
  const std::uint64_t to = is_to_device ? staging_ : kHostAddress;
  const std::uint64_t from = is_to_device ? kHostAddress : staging_;
  check(machine_.model().copy(stream, {to, from, bytes, [] {}}), "copy");
}

void DeepumPlus::let_wait(StreamId stream, StreamId for_what, simgpu::EventId event) {
  check(machine_.model().record_event(event, for_what), "event");
  check(machine_.model().wait_event(stream, event), "event");
}

// True if there is room, or will be when leaving_ comes to its end.
bool DeepumPlus::make_room(std::uint64_t bytes, std::size_t launch, bool is_needed) {
  for (auto place = line_.begin(); free_bytes_ < bytes;) {
    if (place == line_.end()) return false;
    const std::uint32_t victim = *place++;
    Tensor& tensor = tensors_[victim];
    if (tensor.needed_in == ordinal_ || (!is_needed && tensor.window_of == ordinal_)) continue;
    std::uint64_t taken_bytes = tensor.resident_bytes;
    if (is_alive(victim, launch)) {
      taken_bytes = std::min(taken_bytes, bytes - free_bytes_);
      copy(leaving_, false, taken_bytes);
      tensor.host_bytes += taken_bytes;
    }
    tensor.resident_bytes -= taken_bytes;
    free_bytes_ += taken_bytes;
    if (tensor.resident_bytes == 0) line_.erase(tensor.place);
  }
  return true;
}

bool DeepumPlus::fetch(std::uint32_t id, std::size_t launch, bool is_needed) {
  Tensor& tensor = tensors_[id];
  const std::uint64_t absent_bytes = trace_.tensors[id].bytes - tensor.resident_bytes;
  if (absent_bytes == 0) return true;
  if (!make_room(absent_bytes, launch, is_needed)) return false;
  if (tensor.host_bytes > 0) copy(coming_, true, std::exchange(tensor.host_bytes, 0));
  // There, which pages leave and which come take turns: what comes is there when what goes is gone.
  let_wait(coming_, leaving_, turn_);
  check(machine_.model().record_event(tensor.arrival, coming_), "event");
  if (tensor.resident_bytes > 0) line_.erase(tensor.place);
  tensor.place = line_.insert(line_.end(), id);
  tensor.resident_bytes += absent_bytes;
  free_bytes_ -= absent_bytes;
  return true;
}

void DeepumPlus::play_iteration() {
  for (std::size_t launch = 0; launch < trace_.launches.size(); ++launch) {
    ++ordinal_;
    const TraceLaunch& now = trace_.launches[launch];
    for (std::size_t ahead = 1; ahead < kDegree; ++ahead) {
      for (const TraceOperand& operand : launch_ahead(launch, ahead).operands)
        tensors_[operand.tensor].window_of = ordinal_;
    }
    for (const TraceOperand& operand : now.operands) tensors_[operand.tensor].needed_in = ordinal_;

    let_wait(coming_, compute_, turn_);
    let_wait(leaving_, compute_, turn_);
    for (const TraceOperand& operand : now.operands) {
      Tensor& tensor = tensors_[operand.tensor];
      if (!trace_.tensors[operand.tensor].is_weight && tensor.first == launch) tensor.host_bytes = 0;
      if (!fetch(operand.tensor, launch, true)) throw std::runtime_error("a launch does not fit the device");
      check(machine_.model().wait_event(compute_, tensor.arrival), "event");
    }
    bool goes_on = true;
    for (std::size_t ahead = 1; goes_on && ahead < kDegree; ++ahead) {
      for (const TraceOperand& operand : launch_ahead(launch, ahead).operands)
        goes_on = goes_on && fetch(operand.tensor, launch, false);
    }
    machine_.launch(compute_, {}, static_cast<TimeNs>(now.duration_ns));
  }
  machine_.synchronize();
}

// The second iteration, as with base_uvm.
TimeNs deepum_plus_ns(const std::string& profile, const Trace& trace) {
  Machine machine(profile);
  DeepumPlus policy(machine, trace);
  policy.play_iteration();
  const TimeNs began_ns = machine.now();
  policy.play_iteration();
  return machine.now() - began_ns;
}

// ---- the command

void run(const std::vector<std::string>& arguments) {
  const auto usage = [] { return std::invalid_argument("wrong arguments"); };
  if (arguments.size() < 3) throw usage();
  const std::string& point = arguments[0];
  const std::string& profile = arguments[1];
  if (point == "sweep") {
    const double busy_ms = std::stod(arguments[2]);
    for (std::size_t i = 3; i < arguments.size(); ++i) {
      const double factor = std::stod(arguments[i]);
      const double ms = static_cast<double>(sweep_ns(profile, factor, busy_ms)) * 1e-6;
      std::cout << nlohmann::json{{"point", point}, {"factor", factor}, {"ms", ms}} << '\n';
    }
    return;
  }
  if (point != "base_uvm" && point != "deepum_plus") throw usage();
  const Trace trace = read_trace(arguments[2], "dur_us");
  const TimeNs ns = point == "base_uvm" ? base_uvm_ns(profile, trace) : deepum_plus_ns(profile, trace);
  const double slowdown = static_cast<double>(ns) / static_cast<double>(trace.compute_ns());
  std::cout << nlohmann::json{{"point", point}, {"slowdown", slowdown}} << '\n';
}

}  // namespace
}  // namespace hmshim::bench

int main(int argc, char** argv) {
  try {
    hmshim::bench::run({argv + 1, argv + argc});
  } catch (const std::invalid_argument& error) {
    std::cerr << "error: " << error.what() << '\n' << hmshim::bench::kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
