// Marks a thread that is inside a handler: driver calls made from there, by hmshim or by the driver itself, go straight
// through.
#pragma once

namespace hmshim::interpose {

class InShim {
 public:
  // `caller` is where the guest's call returns to.
  explicit InShim(const void* caller) noexcept { caller_ = caller; }
  ~InShim() { caller_ = nullptr; }
  InShim(const InShim&) = delete;
  InShim& operator=(const InShim&) = delete;

  [[nodiscard]] static bool is_nested() noexcept { return caller_ != nullptr; }
  // Only inside handlers.
  [[nodiscard]] static const void* caller() noexcept { return caller_; }

 private:
  // Initial-exec: reading it is one instruction and never allocates. It costs a word of the static TLS that preload
  // libraries share.
  [[gnu::tls_model("initial-exec")]] static inline constinit thread_local const void* caller_ = nullptr;
};

// The body of a thread of the library's own, which is inside for all its life: should the program's malloc call CUDA,
// the thread does not come back to the handlers, whose locks it may hold.
template <class Body>
[[nodiscard]] auto inside_shim(Body body) {
  return [body] {
    static constexpr char kOwnThread = 0;
    const InShim inside(&kOwnThread);
    body();
  };
}

}  // namespace hmshim::interpose
