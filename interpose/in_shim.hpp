// Marks a thread that is inside a handler: driver calls made from there, by hmshim or by the driver itself, go straight
// through.
#pragma once

namespace hmshim::interpose {

class InShim {
 public:
  InShim() noexcept { entered_ = true; }
  ~InShim() { entered_ = false; }
  InShim(const InShim&) = delete;
  InShim& operator=(const InShim&) = delete;

  [[nodiscard]] static bool is_nested() noexcept { return entered_; }

 private:
  // Initial-exec: reading it is one instruction and never allocates. It costs one byte of the static TLS that preload
  // libraries share.
  [[gnu::tls_model("initial-exec")]] static inline constinit thread_local bool entered_ = false;
};

}  // namespace hmshim::interpose
