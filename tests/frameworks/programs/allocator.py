#!/usr/bin/env python3
"""What PyTorch's documentation says of its allocator: statistics, OutOfMemoryError, record_stream, and what goes on after an error.

Prints "ok", or ends with the assertion that did not hold. The device must hold less than 8 GiB, with what the library promises beside it.
"""

import torch

MIB = 1 << 20


def statistics():
    before = torch.cuda.memory_allocated()
    tensor = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == before + 32 * MIB
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
    del tensor
    assert torch.cuda.memory_allocated() == before
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def out_of_memory():
    kept = []
    try:
        while True:
            kept.append(torch.empty(256 * MIB, dtype=torch.uint8, device="cuda"))
            assert len(kept) < 32, "8 GiB were given"
    except torch.OutOfMemoryError as error:
        assert "out of memory" in str(error)
    count = len(kept)
    assert count > 0
    kept.clear()
    kept.append(torch.empty(256 * MIB, dtype=torch.uint8, device="cuda"))


def record_stream():
    """What another stream still reads is not given to the next tensor: copies and fills are real on the simulated GPU too."""
    side = torch.cuda.Stream()
    host = torch.arange(16 * MIB // 8).pin_memory()
    tensor = host.cuda(non_blocking=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        back = tensor.to("cpu", non_blocking=True)
        tensor.record_stream(side)
    del tensor
    for _ in range(4):
        torch.zeros(16 * MIB // 8, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    assert torch.equal(back, host)


statistics()
out_of_memory()
record_stream()
print("ok")
