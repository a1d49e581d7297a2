# No real device: only link and memory limit. What a plan or a baseline is worth when driver and host cost nothing.
name = Ideal 25 GB/s (simulated)   # not a product
compute_major = 8                  # that of an A100
compute_minor = 0                  # that of an A100
multiprocessors = 108              # that of an A100
capacity = 40GiB                   # that of an A100
hbm_gbps = 1555                    # that of an A100
host_ram = 128GiB                  # that of the A100's profile
host_copy_gbps = 10                # that of the A100's profile

# Link
link_h2d_gbps = 25                 # the bulk rate of PCIe 4.0 x16, rounded
link_d2h_gbps = 25                 # the bulk rate of PCIe 4.0 x16, rounded
link_total_gbps = 50               # ideal: full duplex
link_curve = 4KiB:1                # ideal: no cost of small copies
planned_duplex = full              # ideal
eviction_duplex = serialised       # as the stock driver: out, then in

# Faults: 2 MiB in 524 us are 4 GB/s, of which the copy takes 84 us
fault_batch_faults = 256           # nvidia-uvm: uvm_perf_fault_batch_count
fault_group_ns = 0                 # all in fault_block_ns
fault_block_ns = 440402            # 4 GB/s with the copy
copy_engine_fault_page_ns = 0      # ideal
cpu_fault_block_ns = 0             # ideal

# Host time inside the driver: none, but a call must take time to have an order
prefetch_call_ns = 1               # ideal
prefetch_block_ns = 0              # ideal
demote_block_first_ns = 0          # ideal
demote_block_later_ns = 0          # ideal
demote_run = 16MiB                 # nvidia-uvm 595.45.04: migrations pipeline from 16 MiB
discard_block_ns = 0               # ideal
advise_call_ns = 1                 # ideal
advise_block_ns = 0                # ideal
collapse_block_ns = 0              # ideal
evict_block_ns = 0                 # ideal
steal_unused_ns = 0                # ideal
thrashing_lapse_ns = 0             # ideal
access_counter_threshold = 0       # ideal

# Calls
launch_host_ns = 1                 # ideal
launch_device_ns = 0               # ideal
call_host_ns = 1                   # ideal
alloc_host_ns = 1                  # ideal
queue_depth = 1024                 # as the A100's profile
