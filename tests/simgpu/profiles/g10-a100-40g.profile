# The machine that G10's simulator assumes: what its published figures can be compared on. Not a real device.
# (G10, MICRO 2023, doi 10.1145/3613424.3614309; artifact: github.com/platformxlab/G10, src/resources/genconfigs.py and src/simulationEvents.cc)
name = G10's A100 40 GB (simulated)  # not a product
compute_major = 8                  # that of an A100
compute_minor = 0                  # that of an A100
multiprocessors = 108              # that of an A100
capacity = 40GiB                   # GPU_memory_size_GB
hbm_gbps = 1555                    # that of an A100
host_ram = 4096GiB                 # instead of CPU_memory_line_GB = 128 with an SSD behind it, which this model has not
host_copy_gbps = 10                # that of the A100's profile

# Link
link_h2d_gbps = 15.754             # GPU_PCIe_bandwidth_GBps
link_d2h_gbps = 15.754             # GPU_PCIe_bandwidth_GBps
link_total_gbps = 31.508           # 50 pages each way per batch interval: full duplex
link_curve = 4KiB:1                # its latency of 5 us is not used in its code
planned_duplex = full              # 50 pages each way per batch interval
eviction_duplex = full             # 50 pages each way per batch interval

# Faults: its 45 us do not count, because kernel times are divided by the clock rate as integers (KernelBeginEvent::getPageFaultTime)
fault_batch_faults = 256           # nvidia-uvm: uvm_perf_fault_batch_count
fault_group_ns = 0                 # see above
fault_block_ns = 0                 # see above
copy_engine_fault_page_ns = 0      # no copies in its programs
cpu_fault_block_ns = 0             # no CPU faults in its programs

# Host time inside the driver: none in its model, but a call must take time to have an order
prefetch_call_ns = 1               # none
prefetch_block_ns = 0              # none
demote_block_first_ns = 0          # none
demote_block_later_ns = 0          # none
demote_run = 16MiB                 # nvidia-uvm 595.45.04: migrations pipeline from 16 MiB
discard_block_ns = 0               # none
advise_call_ns = 1                 # none
advise_block_ns = 0                # none
collapse_block_ns = 0              # none
evict_block_ns = 0                 # none
steal_unused_ns = 0                # none
thrashing_lapse_ns = 0             # none
access_counter_threshold = 0       # none

# Calls
launch_host_ns = 1                 # none
launch_device_ns = 0               # none
call_host_ns = 1                   # none
alloc_host_ns = 1                  # none
queue_depth = 1024                 # as the A100's profile
