// Every function of the runtime that no other file defines: weak, and not supported. The runtime's headers stay out, so
// that a function without parameters can stand for each of them.
#define SIMGPU_EXPORT(symbol) \
  extern "C" __attribute__((weak, visibility("default"))) int symbol() { return 801; /* cudaErrorNotSupported */ }
#include "tests/simgpu/runtime/exports.def"
#undef SIMGPU_EXPORT
