/* What a test may tell the simulated GPU. C, exported by the simulated libcuda.so.1; see README.md for the environment.
 *
 * A library named in SIMGPU_KERNELS exports `void simgpu_kernels(void)`; cuInit calls it, and it registers what its
 * guest's kernels do. It links to libcuda.so.1, which the guest has loaded by then. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One launch, as the kernel would see it. Valid during the call it is passed to. */
typedef struct simgpu_launch {
  const char* kernel; /* mangled name */
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes; /* dynamic shared memory */
  int device;            /* ordinal */
  size_t parameter_count;
  const void* const* parameters; /* parameters[i] points to the value of parameter i, copied at launch */
  const size_t* parameter_bytes;
} simgpu_launch;

/* Replaces the device code of a kernel. Runs when the launch is due in its stream, on any thread that waits in the
 * driver; device and managed pointers among the parameters may be dereferenced. It must not call the driver. */
typedef void (*simgpu_body)(const simgpu_launch* launch);
void simgpu_register(const char* mangled, simgpu_body body);

/* What a launch touches and for how long it runs, where "each operand from its pointer to its end" is too coarse. */
typedef struct simgpu_footprint simgpu_footprint;
enum { SIMGPU_READ = 1, SIMGPU_WRITE = 2, SIMGPU_READ_WRITE = 3 };
/* Adds one byte range, in the order in which the kernel walks them. */
void simgpu_touch(simgpu_footprint* footprint, uint64_t address, uint64_t bytes, int kind);
/* Virtual duration without stalls. Not called: from the bytes touched and the device's memory bandwidth. */
void simgpu_set_duration_ns(simgpu_footprint* footprint, int64_t duration_ns);
/* Called at every launch of the kernel, on the launching thread. A kernel may have a body, a description, or both. */
typedef void (*simgpu_describe)(const simgpu_launch* launch, simgpu_footprint* footprint);
void simgpu_register_footprint(const char* mangled, simgpu_describe describe);

/* The stand-in runtime tells what it handed out, and with 0 bytes what it took back: a kernel without footprint touches
 * no more than the tensor that it names, whatever larger allocation a library under test cut that from. */
void simgpu_note_tensor(uint64_t address, uint64_t bytes);

/* The address of the tensor that a kernel's CUtensorMap parameter was made from. */
void* simgpu_tensor_map_address(const void* map);

/* The virtual clock of the calling thread; 0 before cuInit. */
unsigned long long simgpu_now_ns(void);
/* Lets virtual time pass for the caller. */
void simgpu_sleep_ns(unsigned long long ns);
/* The calling CPU reads or writes managed memory, which its plain loads and stores do not tell. */
void simgpu_host_access(uint64_t address, size_t bytes, int kind);

/* Threads of a library under test that act by themselves, see "time and agents" in model/model.hpp: register before the
 * thread starts, attach in it, detach at its end. `watch` ends when the bytes at `memory` are no longer `seen`, at the
 * virtual deadline (0: never) or by `wake`. Between begin_ and end_external_wait virtual time does not wait for the
 * caller. */
unsigned simgpu_register_agent(const char* name);
void simgpu_attach_agent(unsigned agent);
void simgpu_detach_agent(void);
void simgpu_wake_agent(unsigned agent);
void simgpu_watch(const void* memory, const void* seen, size_t bytes, unsigned long long deadline_ns);
void simgpu_take_turn(void);
void simgpu_begin_external_wait(void);
void simgpu_end_external_wait(void);

/* Host memory of the simulated machine that managed memory can still have; 0 before cuInit. */
unsigned long long simgpu_host_available_bytes(void);

/* What no device tells beforehand, for policies that are a yardstick: how long the calling thread's last launch runs
 * without stalls (0: not said by its footprint), and the link's bulk rates. */
void simgpu_foretell(unsigned long long* last_launch_ns, double* h2d_bytes_per_s, double* d2h_bytes_per_s);

/* Figures since cuInit, over all devices; zero before it. The last line of SIMGPU_LOG has them under the same names.
 * live_*: created and not yet destroyed; modules include libraries, graphs include executable ones.
 * h2d_*, d2h_*: bytes over the link by cause. user: prefetches. demand: faults, and what access counters bring.
 * coherence: the CPU's accesses, and writes that end read duplication. *_after_discard: hazards, regions of 64 KiB.
 * calls: counted with SIMGPU_LOG or SIMGPU_FAIL set. */
#define SIMGPU_FIGURES(FIGURE)                                                                                        \
  FIGURE(live_allocations)                                                                                            \
  FIGURE(live_host_allocations) FIGURE(live_streams) FIGURE(live_events) FIGURE(live_contexts) FIGURE(live_modules)   \
      FIGURE(live_graphs) FIGURE(kernels) FIGURE(h2d_user_bytes) FIGURE(h2d_coherence_bytes) FIGURE(h2d_demand_bytes) \
          FIGURE(h2d_copy_bytes) FIGURE(h2d_remote_bytes) FIGURE(d2h_user_bytes) FIGURE(d2h_coherence_bytes)          \
              FIGURE(d2h_eviction_bytes) FIGURE(d2h_copy_bytes) FIGURE(d2h_remote_bytes) FIGURE(resident_bytes)       \
                  FIGURE(peak_resident_bytes) FIGURE(fault_groups) FIGURE(evicted_blocks) FIGURE(discarded_bytes)     \
                      FIGURE(dropped_bytes) FIGURE(writes_after_discard) FIGURE(reads_after_discard) FIGURE(calls)    \
                          FIGURE(kernel_busy_ns) FIGURE(stall_ns) FIGURE(now_ns)

#define SIMGPU_FIGURE(name) uint64_t name;
typedef struct simgpu_stats {
  SIMGPU_FIGURES(SIMGPU_FIGURE)
} simgpu_stats;
#undef SIMGPU_FIGURE
void simgpu_get_stats(simgpu_stats* stats);

#ifdef __cplusplus
}
#endif
