#pragma once

namespace hmshim::simgpu::machine {

/// The driver's lock on a process's address space (nvidia-uvm uvm_va_space.h), together with the kernel's mmap_lock. A
/// prefetch, demote or discard holds it for reading until its last block; an allocation, a free and an advice hold it
/// for writing. A writer that waits keeps new readers out, fault service included (hardware_truths 6).
class VaSpaceLock {
 public:
  /// Fault service holds it too short to be counted, but does not get in past a writer.
  [[nodiscard]] bool can_read() const { return !is_written_ && waiting_writers_ == 0; }
  [[nodiscard]] bool try_read() {
    if (!can_read()) return false;
    ++readers_;
    return true;
  }
  void end_read() { --readers_; }
  void ask_for_write() { ++waiting_writers_; }
  /// After ask_for_write, until it is true.
  [[nodiscard]] bool try_write() {
    if (is_written_ || readers_ > 0) return false;
    --waiting_writers_;
    return is_written_ = true;
  }
  void end_write() { is_written_ = false; }

 private:
  int readers_ = 0;
  int waiting_writers_ = 0;
  bool is_written_ = false;
};

}  // namespace hmshim::simgpu::machine
