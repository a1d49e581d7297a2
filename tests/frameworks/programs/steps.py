"""Tells the harness what a program did: per step, the launches so far and the time. Virtual on the simulated GPU, real elsewhere."""

import ctypes
import json
import time

import torch

# What simgpu_get_stats fills, in the order of simgpu.h.
FIGURES = (
    "live_allocations live_host_allocations live_streams live_events live_contexts live_modules live_graphs kernels "
    "h2d_user_bytes h2d_coherence_bytes h2d_demand_bytes h2d_copy_bytes h2d_remote_bytes d2h_user_bytes d2h_coherence_bytes "
    "d2h_eviction_bytes d2h_copy_bytes d2h_remote_bytes resident_bytes peak_resident_bytes fault_groups evicted_blocks "
    "discarded_bytes dropped_bytes writes_after_discard reads_after_discard calls kernel_busy_ns stall_ns now_ns").split()


class Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in FIGURES]


def figures():
    driver = ctypes.CDLL("libcuda.so.1")
    if not hasattr(driver, "simgpu_get_stats"):
        return {"now_ns": time.perf_counter_ns()}
    stats = Stats()
    driver.simgpu_get_stats(ctypes.byref(stats))
    return {name: getattr(stats, name) for name in FIGURES}


class Steps:
    """Call done() after each training step; report() prints one JSON line."""

    def __init__(self):
        self.at = []

    def done(self):
        torch.cuda.synchronize()
        self.at.append(figures())

    @property
    def count(self):
        return len(self.at)

    def report(self, **more):
        keys = [key for key in ("now_ns", "kernels") if key in self.at[0]]
        each = {key: [later[key] - earlier[key] for earlier, later in zip(self.at, self.at[1:])] for key in keys}
        print(json.dumps({"steps": len(self.at), **each, "total": self.at[-1], **more}))
