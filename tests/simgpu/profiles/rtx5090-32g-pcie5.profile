# GeForce RTX 5090 32 GB on PCIe 5.0 x16: the card of the sweep over footprints in bench/README.md. Only its own size and rates differ from the RTX 5080
name = RTX-5090-32GB (simulated)      # product
compute_major = 12                 # product
compute_minor = 0                  # product
multiprocessors = 170              # product
capacity = 32108MiB                # what cudaMemGetInfo calls its total (github.com/eunomia-bpf/gpu_ext, microbench/memory)
hbm_gbps = 1792                    # product
host_ram = 64GiB                   # swept
host_copy_gbps = 10                # swept: one thread's memcpy

# Link
link_h2d_gbps = 41.7               # MSched: batched migration, one direction at a time
link_d2h_gbps = 41.7               # MSched: batched migration, one direction at a time
link_total_gbps = 63.5             # MSched: pipelined swap, both directions together
link_curve = 4KiB:0.1807 6KiB:0.2626 8KiB:0.3362 12KiB:0.4576 16KiB:0.5489 24KiB:0.6695 32KiB:0.7422 64KiB:0.8656 128KiB:0.9321 256KiB:0.9659 512KiB:0.9830 1MiB:0.9915 2MiB:0.9957 64MiB:1  # (2/pi) atan(0.07292 KiB), UVMSmart's fit for PCIe; bulk from 64 MiB
planned_duplex = full              # nvidia-uvm 595.45.04: separate channels per direction
eviction_duplex = serialised       # stock driver: unmap, out, in, map one after the other (MSched)

# Faults
fault_batch_faults = 256           # nvidia-uvm: uvm_perf_fault_batch_count
fault_group_ns = 15440             # 31.79 us per single fault of which 1.35 us copy (MSched) less the block's share
fault_block_ns = 15000             # swept: most of a group's cost is per block (Allen and Ge SC'21)
copy_engine_fault_page_ns = 31790  # 31.79 us per single fault (MSched): one page each
cpu_fault_block_ns = 20000         # swept

# Prefetch, demote, discard, advice: host time inside the driver
prefetch_call_ns = 10000           # swept
prefetch_block_ns = 3000           # swept
demote_block_first_ns = 250000     # swept: host pages allocated and IOMMU-mapped, 512 page mappings
demote_block_later_ns = 80000      # swept: 512 page mappings
demote_run = 16MiB                 # nvidia-uvm 595.45.04: migrations pipeline from 16 MiB
discard_block_ns = 5000            # swept: unmap, TLB invalidate, wait
advise_call_ns = 5000              # swept
advise_block_ns = 500              # swept
collapse_block_ns = 20000          # swept
evict_block_ns = 10000             # swept: unmap, TLB invalidate
steal_unused_ns = 2000             # swept
thrashing_lapse_ns = 500000        # nvidia-uvm: uvm_perf_thrashing_lapse_usec
access_counter_threshold = 0       # nvidia-uvm: migration by access counters is off without ATS

# Calls
launch_host_ns = 2500              # swept
launch_device_ns = 1000            # swept
call_host_ns = 500                 # swept
alloc_host_ns = 10000              # swept
queue_depth = 1024                 # swept
