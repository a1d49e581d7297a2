// Asks for entry points of the driver in every way a program can, and prints what it got.
//
// usage: resolve [--constructor] [--threads] HOW NAME...
//   HOW            dlsym (from libcuda's handle) | global (from the program's handle) | default | next (RTLD_DEFAULT,
//   RTLD_NEXT) |
//                  proc | proc_without_status (cuGetProcAddress_v2) | proc_v1 (cuGetProcAddress); NAME is then
//                  BASE:VERSION:FLAGS
//   --constructor  asks before main
//   --threads      asks from 16 threads at once; they must agree
// One line a name: "NAME -> SYMBOL LIBRARY", or "NAME -> -". Every lookup is made twice; the answers must be the same.
#include <dlfcn.h>
#include <unistd.h>

#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

using GetProcAddress = int (*)(const char*, void**, int, std::uint64_t);
using GetProcAddressV2 = int (*)(const char*, void**, int, std::uint64_t, int*);

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "resolve: %s\n", why.c_str());
  std::_Exit(1);
}

// As the runtime does.
void* libcuda() {
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  if (handle == nullptr) give_up(dlerror());
  return handle;
}

std::string name_of(void* address) {
  if (address == nullptr) return "-";
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_sname == nullptr) return "unknown";
  const std::string file = info.dli_fname;
  return std::string(info.dli_sname) + " " + file.substr(file.rfind('/') + 1);
}

std::string ask_proc(const std::string& how, const std::string& query) {
  const auto first = query.find(':');
  const auto second = query.find(':', first + 1);
  const std::string base = query.substr(0, first);
  const int version = std::stoi(query.substr(first + 1, second - first - 1));
  const std::uint64_t flags = std::stoull(query.substr(second + 1));
  void* address = nullptr;
  int status = -1;
  int result;
  if (how == "proc_v1") {
    const auto get = reinterpret_cast<GetProcAddress>(dlsym(libcuda(), "cuGetProcAddress"));
    result = get(base.c_str(), &address, version, flags);
  } else {
    const auto get = reinterpret_cast<GetProcAddressV2>(dlsym(libcuda(), "cuGetProcAddress_v2"));
    result = get(base.c_str(), &address, version, flags, how == "proc" ? &status : nullptr);
  }
  return "result " + std::to_string(result) + " status " + std::to_string(status) + " " + name_of(address);
}

std::string ask(const std::string& how, const std::string& name) {
  if (how == "dlsym") return name_of(dlsym(libcuda(), name.c_str()));
  if (how == "global") return name_of(dlsym(dlopen(nullptr, RTLD_NOW), name.c_str()));
  if (how == "default") return name_of(dlsym(RTLD_DEFAULT, name.c_str()));
  if (how == "next") return name_of(dlsym(RTLD_NEXT, name.c_str()));
  return ask_proc(how, name);
}

std::string ask_all(const std::string& how, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    const std::string answer = ask(how, name);
    if (const std::string again = ask(how, name); again != answer) give_up(name + ": " + answer + ", then " + again);
    text += name + " -> " + answer + "\n";
  }
  return text;
}

std::string ask_from_threads(const std::string& how, const std::vector<std::string>& names) {
  constexpr int kThreads = 16;
  std::vector<std::string> texts(kThreads);
  std::barrier start(kThreads);
  {
    std::vector<std::jthread> threads;
    for (std::string& text : texts) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        text = ask_all(how, names);
      });
    }
  }
  for (const std::string& text : texts) {
    if (text != texts.front()) give_up("threads disagree:\n" + texts.front() + "and\n" + text);
  }
  return texts.front();
}

struct Arguments {
  bool constructor = false;
  bool threads = false;
  std::string how;
  std::vector<std::string> names;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  int next = 1;
  for (; next < argc && argv[next][0] == '-' && argv[next][1] == '-'; ++next) {
    (std::string(argv[next]) == "--threads" ? arguments.threads : arguments.constructor) = true;
  }
  if (next < argc) arguments.how = argv[next++];
  arguments.names.assign(argv + next, argv + argc);
  return arguments;
}

void run(const Arguments& arguments) {
  const std::string text =
      arguments.threads ? ask_from_threads(arguments.how, arguments.names) : ask_all(arguments.how, arguments.names);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// glibc passes constructors the arguments of main.
[[gnu::constructor]] void before_main(int argc, char** argv, char**) {
  if (const Arguments arguments = parse(argc, argv); arguments.constructor) run(arguments);
}

}  // namespace

int main(int argc, char** argv) {
  if (const Arguments arguments = parse(argc, argv); !arguments.constructor) run(arguments);
}
