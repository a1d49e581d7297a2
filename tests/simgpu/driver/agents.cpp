// What a library under test may say about its own threads.
#include "tests/simgpu/driver/driver.hpp"
#include "tests/simgpu/simgpu.h"

using namespace hmshim::simgpu;

#define SIMGPU_EXPORT extern "C" __attribute__((visibility("default")))

SIMGPU_EXPORT unsigned simgpu_register_agent(const char* name) { return driver().model->register_agent(name); }
SIMGPU_EXPORT void simgpu_attach_agent(unsigned agent) { static_cast<void>(driver().model->attach_agent(agent)); }
SIMGPU_EXPORT void simgpu_detach_agent(void) { driver().model->detach_agent(); }
SIMGPU_EXPORT void simgpu_wake_agent(unsigned agent) { static_cast<void>(driver().model->wake_agent(agent)); }
SIMGPU_EXPORT void simgpu_watch(const void* memory, const void* seen, size_t bytes, unsigned long long deadline_ns) {
  driver().model->watch(memory, seen, bytes, static_cast<TimeNs>(deadline_ns));
}
SIMGPU_EXPORT void simgpu_take_turn(void) { driver().model->take_turn(); }
SIMGPU_EXPORT void simgpu_begin_external_wait(void) { driver().model->begin_external_wait(); }
SIMGPU_EXPORT void simgpu_end_external_wait(void) { driver().model->end_external_wait(); }
