// An array of zeros whose pages take memory when they are first written: histories are sized for the longest iteration
// there may be, and most processes never fill them.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace hmshim::policy {

// Zero bytes must be T's default value.
template <class T>
class ZeroedArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  // Throws std::bad_alloc.
  explicit ZeroedArray(std::size_t count) : memory_(std::calloc(count * sizeof(T) + alignof(T), 1)) {
    if (memory_ == nullptr) throw std::bad_alloc();
    std::size_t room = count * sizeof(T) + alignof(T);
    void* begin = memory_.get();
    begin_ = static_cast<T*>(std::align(alignof(T), count * sizeof(T), begin, room));
  }

  [[nodiscard]] T& operator[](std::size_t index) noexcept { return begin_[index]; }
  [[nodiscard]] const T& operator[](std::size_t index) const noexcept { return begin_[index]; }

 private:
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  T* begin_;
};

}  // namespace hmshim::policy
