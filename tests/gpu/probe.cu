// Asks a GPU what documents and driver source leave open about managed memory, and what each thing costs that the model
// of tests/simgpu charges for. It uses no part of hmshim.
//
// usage: probe [--only NAME,NAME...] [--time-limit SECONDS] [--managed-limit BYTES]
// Each answer is one JSON line on stderr as it comes; all of them are one JSON document on stdout at the end.
// exit status: 0 all questions answered; 1 some failed or ran out of time; 2 bad arguments; 77 no GPU to ask
//
// Safe on a card that others use: managed memory stays below a quarter of what is free, so the driver never has to
// evict. Each question is a child process, forked before any CUDA call, with a time limit of its own. It writes one
// JSON member a line, so that what it learned before it hung is kept. If a killed child does not die, the driver is
// stuck and nothing more is asked.
#include "tests/gpu/probe.hpp"

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace probe {
namespace {

constexpr int kNoGpu = 77;  // CTest's and automake's "skipped"
constexpr int kUsageError = 2;

// ---- a simulated GPU (tests/simgpu/simgpu.h) ----

struct Simulation {
  unsigned long long (*now_ns)() = nullptr;
  unsigned (*register_agent)(const char*) = nullptr;
  void (*attach_agent)(unsigned) = nullptr;
  void (*detach_agent)() = nullptr;
  void (*begin_external_wait)() = nullptr;
  void (*end_external_wait)() = nullptr;
  void (*sleep_ns)(unsigned long long) = nullptr;
  void (*host_access)(std::uint64_t, std::size_t, int) = nullptr;
};

// Null pointers on a real driver, and before CUDA is started.
Simulation simulation;

void find_simulation() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr || dlsym(driver, "simgpu_now_ns") == nullptr) return;
  const auto find = [driver](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(driver, name));
    if (function == nullptr) give_up(name, "is missing in this simulated GPU");
  };
  find(simulation.now_ns, "simgpu_now_ns");
  find(simulation.register_agent, "simgpu_register_agent");
  find(simulation.attach_agent, "simgpu_attach_agent");
  find(simulation.detach_agent, "simgpu_detach_agent");
  find(simulation.begin_external_wait, "simgpu_begin_external_wait");
  find(simulation.end_external_wait, "simgpu_end_external_wait");
  find(simulation.sleep_ns, "simgpu_sleep_ns");
  find(simulation.host_access, "simgpu_host_access");
}

// ---- the child's state ----

FILE* answer = nullptr;  // the pipe to the parent
std::size_t limit_bytes = 0;
std::size_t allocated_bytes = 0;

}  // namespace

Clock::time_point Clock::now() {
  if (simulation.now_ns != nullptr) return static_cast<time_point>(simulation.now_ns());
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

double ms_since(Clock::time_point start) { return static_cast<double>(Clock::now() - start) / 1e6; }

void rest_ms(double ms) {
  if (simulation.sleep_ns != nullptr) {
    simulation.sleep_ns(static_cast<unsigned long long>(1e6 * ms));
  } else {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
  }
}

Companion::Companion(std::function<void()> body) {
  if (simulation.register_agent != nullptr) agent_ = simulation.register_agent("companion");
  thread_ = std::thread([this, body = std::move(body)] {
    if (simulation.attach_agent != nullptr) simulation.attach_agent(agent_);
    body();
    if (simulation.detach_agent != nullptr) simulation.detach_agent();
  });
}

void Companion::join() {
  if (!thread_.joinable()) return;
  if (simulation.begin_external_wait != nullptr) simulation.begin_external_wait();
  thread_.join();
  if (simulation.end_external_wait != nullptr) simulation.end_external_wait();
}

// ---- answers ----

void tell_to(int descriptor) {
  answer = fdopen(descriptor, "w");
  setvbuf(answer, nullptr, _IOLBF, BUFSIZ);
}
void tell(const std::string& name, double value) { std::fprintf(answer, "\"%s\": %.6g\n", name.c_str(), value); }
void tell(const std::string& name, std::size_t value) { std::fprintf(answer, "\"%s\": %zu\n", name.c_str(), value); }
void tell(const std::string& name, bool value) {
  std::fprintf(answer, "\"%s\": %s\n", name.c_str(), value ? "true" : "false");
}
void tell(const std::string& name, const char* value) { std::fprintf(answer, "\"%s\": \"%s\"\n", name.c_str(), value); }
void tell(const std::string& name, const Points& points) {
  std::string text;
  for (const auto& [size, value] : points) {
    char point[64];
    std::snprintf(point, sizeof(point), "%s[%.10g, %.6g]", text.empty() ? "" : ", ", size, value);
    text += point;
  }
  std::fprintf(answer, "\"%s\": [%s]\n", name.c_str(), text.c_str());
}

void give_up(const std::string& what, const char* why) {
  tell("error", (what + ": " + why).c_str());
  std::fflush(answer);
  std::_Exit(1);
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) give_up(what, cudaGetErrorString(error));
}

double percentile(std::vector<double> values, double percent) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(static_cast<double>(values.size() - 1) * percent / 100.0)];
}

double median(std::vector<double> values) { return percentile(std::move(values), 50); }

double ms_between(const Event& begin, const Event& end) {
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, begin, end));
  return static_cast<double>(ms);
}

// ---- memory ----

void start_cuda(std::size_t at_most_bytes) {
  CHECK(cudaSetDevice(0));
  find_simulation();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  // Migrated pages need room on both sides.
  const std::size_t host_free_bytes =
      static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  limit_bytes = std::min(std::min(free_bytes, host_free_bytes) / 4, at_most_bytes);
}

std::size_t managed_limit_bytes() { return limit_bytes; }

bool fits(std::size_t bytes) { return allocated_bytes + bytes <= limit_bytes; }

std::size_t region_bytes(std::size_t wanted, std::size_t count) {
  while (!fits(wanted * count) && wanted > kBlockBytes) wanted /= 2;
  return wanted;
}

Managed::Managed(std::size_t bytes) : bytes_(bytes) {
  if (!fits(bytes)) give_up("managed allocation", "it would pass the limit, a quarter of the free memory or less");
  CHECK(cudaMallocManaged(&data_, bytes));
  allocated_bytes += bytes;
}

Managed::~Managed() {
  CHECK(cudaFree(data_));
  allocated_bytes -= bytes_;
}

void Managed::enqueue_prefetch(cudaMemLocation to, cudaStream_t stream, std::size_t chunk_bytes) const {
  for (std::size_t done = 0; done < bytes_; done += chunk_bytes) {
    CHECK(cudaMemPrefetchAsync(data_ + done, std::min(chunk_bytes, bytes_ - done), to, 0, stream));
  }
}

double Managed::prefetch(cudaMemLocation to, cudaStream_t stream, std::size_t chunk_bytes) const {
  const auto start = Clock::now();
  enqueue_prefetch(to, stream, chunk_bytes);
  CHECK(cudaStreamSynchronize(stream));
  return ms_since(start);
}

double Managed::advise(cudaMemoryAdvise advice, cudaMemLocation location) const {
  const auto start = Clock::now();
  CHECK(cudaMemAdvise(data_, bytes_, advice, location));
  return us_since(start);
}

void Managed::touch_on_host(std::size_t bytes) const {
  if (simulation.host_access != nullptr) {
    simulation.host_access(reinterpret_cast<std::uint64_t>(data_), bytes, 2);  // SIMGPU_WRITE
  }
  for (std::size_t at = 0; at < bytes; at += 4096) static_cast<volatile char*>(data_)[at] = 1;
}

void Managed::warm_up(cudaStream_t stream) const {
  std::memset(data_, 1, bytes_);
  prefetch(kDevice, stream);
  prefetch(kHost, stream);
}

namespace {

// ---- the card ----

void device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::fprintf(stderr, "probe: no GPU to ask: %s\n",
                 error == cudaSuccess ? "the driver counts 0 devices" : cudaGetErrorString(error));
    std::_Exit(kNoGpu);
  }
  int concurrent = 0;
  CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (concurrent == 0) {
    std::fprintf(stderr, "probe: no GPU to ask: device 0 has no concurrentManagedAccess, which prefetch needs\n");
    std::_Exit(kNoGpu);
  }
  cudaDeviceProp properties{};
  CHECK(cudaGetDeviceProperties(&properties, 0));
  int driver = 0;
  int pageable = 0;
  int copy_engines = 0;
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, 0));
  CHECK(cudaDeviceGetAttribute(&copy_engines, cudaDevAttrAsyncEngineCount, 0));
  tell("name", properties.name);
  tell("is_simulated", simulation.now_ns != nullptr);
  tell("compute_major", static_cast<std::size_t>(properties.major));
  tell("compute_minor", static_cast<std::size_t>(properties.minor));
  tell("multiprocessors", static_cast<std::size_t>(properties.multiProcessorCount));
  tell("driver_version", static_cast<std::size_t>(driver));
  tell("pageable_memory_access", pageable != 0);
  tell("copy_engines", static_cast<std::size_t>(copy_engines));
  tell("total_bytes", properties.totalGlobalMem);
  tell("managed_limit_bytes", managed_limit_bytes());
}

// ---- the parent's side ----

using Wall = std::chrono::steady_clock;
double wall_s(Wall::time_point start) { return std::chrono::duration<double>(Wall::now() - start).count(); }

struct Answer {
  std::string members;  ///< JSON members, joined
  bool stuck = false;   ///< the child was killed and did not die
  int status = 0;       ///< exit status of the child, -1 when it was killed
};

Answer ask(const Question& question, double limit_s, std::size_t at_most_bytes) {
  Answer result;
  int ends[2];
  if (pipe(ends) != 0) {
    std::perror("probe: pipe");
    std::exit(1);
  }
  std::fflush(nullptr);
  const auto start = Wall::now();
  const pid_t child = fork();
  if (child < 0) {
    std::perror("probe: fork");
    std::exit(1);
  }
  if (child == 0) {
    close(ends[0]);
    tell_to(ends[1]);
    // Without a driver this question says so itself.
    if (question.ask != device || cudaFree(nullptr) == cudaSuccess) start_cuda(at_most_bytes);
    question.ask();
    std::fflush(answer);
    std::_Exit(0);  // no exit handlers: the context's teardown is not part of the question
  }
  close(ends[1]);
  std::string text;
  bool open = true;
  while (open && wall_s(start) < limit_s) {
    pollfd wait{ends[0], POLLIN, 0};
    if (poll(&wait, 1, 50) > 0) {
      char buffer[4096];
      const ssize_t size = read(ends[0], buffer, sizeof(buffer));
      if (size > 0) text.append(buffer, static_cast<std::size_t>(size));
      open = size > 0;
    }
  }
  close(ends[0]);
  if (open) kill(child, SIGKILL);
  int status = 0;
  const auto killed = Wall::now();
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (wall_s(killed) > 3) {
      kill(child, SIGKILL);
      result.stuck = wall_s(killed) > 5;
      if (result.stuck) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  result.status = !result.stuck && WIFEXITED(status) ? WEXITSTATUS(status) : -1;

  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    result.members += text.substr(begin, end - begin) + ", ";
  }
  const char* outcome = result.stuck         ? "killed at its time limit, and did not die"
                        : open               ? "killed at its time limit"
                        : result.status == 0 ? "answered"
                        : result.status > 0  ? "failed"
                                             : "crashed";
  char tail[128];
  std::snprintf(tail, sizeof(tail), "\"outcome\": \"%s\", \"seconds\": %.3g", outcome, wall_s(start));
  result.members += tail;
  return result;
}

struct Options {
  std::string only;  // ",name,name,"; empty: all
  double time_limit_s = 85;
  std::size_t managed_limit_bytes = SIZE_MAX;
};

[[noreturn]] void refuse(const std::string& complaint) {
  std::fprintf(stderr, "probe: %s\nusage: probe [--only NAME,NAME...] [--time-limit SECONDS] [--managed-limit BYTES]\n",
               complaint.c_str());
  std::exit(kUsageError);
}

Options parse(int argc, char** argv, const std::vector<Question>& questions) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) refuse(name + " needs a value");
    char* end = argv[i + 1];
    if (name == "--only") {
      options.only = "," + std::string(argv[i + 1]) + ",";
      end += std::strlen(end);
    } else if (name == "--time-limit") {
      options.time_limit_s = std::strtod(argv[i + 1], &end);
    } else if (name == "--managed-limit") {
      options.managed_limit_bytes = std::strtoull(argv[i + 1], &end, 10);
    } else {
      refuse("unknown argument " + name);
    }
    if (*end != '\0' || *argv[i + 1] == '\0') refuse(name + " " + argv[i + 1] + " makes no sense");
  }
  for (std::size_t begin = 1; begin < options.only.size();) {
    const std::size_t end = options.only.find(',', begin);
    const std::string name = options.only.substr(begin, end - begin);
    const auto is_it = [&](const Question& question) { return question.name == name; };
    if (std::none_of(questions.begin(), questions.end(), is_it)) refuse("there is no question '" + name + "'");
    begin = end + 1;
  }
  return options;
}

int run(int argc, char** argv) {
  // What the model charges for comes first: it decides what the library would plan.
  std::vector<Question> questions = kCosts;
  questions.insert(questions.end(), kBehaviours.begin(), kBehaviours.end());
  const Options options = parse(argc, argv, questions);
  const auto start = Wall::now();
  // A kernel loaded at its first launch could wait for the ones that run, and be measured as something else.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const Answer card = ask({"device", device, 15}, 15, options.managed_limit_bytes);
  if (card.status == kNoGpu) return kNoGpu;
  std::string document = "{\"schema\": 1, \"device\": {" + card.members + "}";
  std::fprintf(stderr, "{\"device\": {%s}}\n", card.members.c_str());
  bool complete = card.status == 0;
  bool stuck = card.stuck;
  for (const Question& question : questions) {
    if (!options.only.empty() && options.only.find("," + std::string(question.name) + ",") == std::string::npos)
      continue;
    const double left_s = options.time_limit_s - wall_s(start);
    Answer result;
    if (stuck || left_s < 2) {
      result.status = -1;
      result.members = stuck ? "\"outcome\": \"not asked: an earlier question left the driver stuck\""
                             : "\"outcome\": \"not asked: no time left\"";
    } else {
      result = ask(question, std::min(question.limit_s, left_s), options.managed_limit_bytes);
    }
    complete = complete && result.status == 0;
    stuck = stuck || result.stuck;
    const std::string member = std::string("\"") + question.name + "\": {" + result.members + "}";
    std::fprintf(stderr, "{%s}\n", member.c_str());
    document += ", " + member;
  }
  std::printf("%s}\n", document.c_str());
  return complete ? 0 : 1;
}

}  // namespace
}  // namespace probe

int main(int argc, char** argv) { return probe::run(argc, argv); }
