#include "uvm/driver_api.hpp"

#include <ctime>

namespace hmshim::uvm {

namespace {
enum class Need : std::uint8_t { required, optional };
}

std::uint64_t DriverApi::now_ns() const noexcept {
  if (simgpu_now_ns != nullptr) return simgpu_now_ns();
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

std::string_view resolve(DriverApi& api, Resolver resolver) noexcept {
  std::string_view missing;
#define DRIVER_CALL(member, type, symbol, need)          \
  api.member = reinterpret_cast<type>(resolver(symbol)); \
  if (Need::need == Need::required && api.member == nullptr && missing.empty()) missing = symbol;
#include "uvm/driver_api.def"
#undef DRIVER_CALL
  return missing;
}

}  // namespace hmshim::uvm
