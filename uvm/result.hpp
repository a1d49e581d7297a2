// What a mechanism hands back: a value, or the driver's code and our reason for it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>

namespace hmshim::uvm {

enum class Reason : std::uint8_t {
  DriverRefused,  // the driver's own error, unchanged
  ManagedLimit,   // HMSHIM_MANAGED_LIMIT is used up
  HostLimit,      // HMSHIM_HOST_LIMIT is used up
  HostMemory,     // the host or its cgroup could not hold what the device cannot
  DeviceMemory,   // allocations that stay on the device have taken all but what managed ones need there
  TableRefused,   // the allocation table had no memory, or no room for such an address
  NotOurs,        // no allocation of ours begins at that address
};

[[nodiscard]] constexpr std::string_view to_string(Reason reason) noexcept {
  switch (reason) {
    case Reason::DriverRefused:
      return "driver_refused";
    case Reason::ManagedLimit:
      return "managed_limit";
    case Reason::HostLimit:
      return "host_limit";
    case Reason::HostMemory:
      return "host_memory";
    case Reason::DeviceMemory:
      return "device_memory";
    case Reason::TableRefused:
      return "table_refused";
    case Reason::NotOurs:
      return "not_ours";
  }
  return "unknown";
}

struct Error {
  CUresult code;
  Reason reason;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : outcome_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : outcome_(std::in_place_index<1>, error) {}

  [[nodiscard]] explicit operator bool() const noexcept { return outcome_.index() == 0; }
  [[nodiscard]] T& operator*() noexcept { return *std::get_if<0>(&outcome_); }
  [[nodiscard]] const T& operator*() const noexcept { return *std::get_if<0>(&outcome_); }
  [[nodiscard]] T* operator->() noexcept { return std::get_if<0>(&outcome_); }
  [[nodiscard]] const T* operator->() const noexcept { return std::get_if<0>(&outcome_); }
  [[nodiscard]] const Error& error() const noexcept { return *std::get_if<1>(&outcome_); }
  // CUDA_SUCCESS when there is a value.
  [[nodiscard]] CUresult code() const noexcept { return *this ? CUDA_SUCCESS : error().code; }

 private:
  std::variant<T, Error> outcome_;
};

}  // namespace hmshim::uvm
