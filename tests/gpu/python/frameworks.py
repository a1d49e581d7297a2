"""Makes one framework or library allocate, launch and compute on the GPU, and compares with what the CPU says.

usage: frameworks.py pytorch|cublas|cudnn|nccl|triton|cupy|jax

Prints one JSON object of figures. Exit status 77 where the machine lacks what it needs, with the reason; 1 when a result is
wrong. It knows nothing of hmshim.
"""
import json
import os
import sys

MIB = 1 << 20


def missing(why):
    print(why)
    sys.exit(77)


def expect(is_right, what):
    if not is_right:
        sys.exit(f"wrong: {what}")


def torch_on_gpu():
    import torch
    if not torch.cuda.is_available():
        missing("PyTorch sees no GPU")
    torch.manual_seed(1)
    return torch


def pytorch():
    torch = torch_on_gpu()
    tensors = [torch.full((4 * MIB,), float(i), device="cuda") for i in range(8)]
    total = sum(tensors)
    expect(bool((total == 28).all()), "the sum of eight tensors")
    free, capacity = torch.cuda.mem_get_info()
    expect(0 < free <= capacity, "free and total memory")
    expect(torch.cuda.memory_allocated() >= 8 * 16 * MIB, "PyTorch's own statistics")
    graph, static = torch.cuda.CUDAGraph(), torch.zeros(MIB, device="cuda")
    with torch.cuda.graph(graph):
        static.add_(1)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    expect(bool((static == 3).all()), "three replays of a captured addition")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        doubled = 2 * total
        total.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    expect(bool((doubled == 56).all()), "work on a second stream")
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        expect(False, "an allocation of a petabyte succeeded")
    except torch.cuda.OutOfMemoryError:
        pass
    capsule = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(total))
    expect(capsule.device.type == "cuda", "DLPack")
    return {"version": torch.__version__, "backend": torch.cuda.get_allocator_backend(), "free_bytes": free, "total_bytes": capacity}


def cublas():
    torch = torch_on_gpu()
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    product = a.cuda() @ b.cuda()
    expect(torch.allclose(product.cpu(), a @ b, rtol=1e-2, atol=1e-2), "a matrix product")
    half = a.cuda().bfloat16() @ b.cuda().bfloat16()
    expect(torch.allclose(half.float().cpu(), a @ b, rtol=0.1, atol=2), "a matrix product in bfloat16")
    return {"cuda": torch.version.cuda}


def cudnn():
    torch = torch_on_gpu()
    if not torch.backends.cudnn.is_available():
        missing("PyTorch has no cuDNN")
    images, weights = torch.randn(8, 32, 64, 64), torch.randn(64, 32, 3, 3)
    found = torch.nn.functional.conv2d(images.cuda(), weights.cuda())
    expect(torch.allclose(found.cpu(), torch.nn.functional.conv2d(images, weights), rtol=1e-1, atol=2e-1), "a convolution")
    return {"version": torch.backends.cudnn.version()}


def nccl():
    torch = torch_on_gpu()
    import torch.distributed as distributed
    if not distributed.is_available() or not distributed.is_nccl_available():
        missing("PyTorch has no NCCL")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577")
    distributed.init_process_group("nccl", rank=0, world_size=1)
    tensor = torch.full((MIB,), 3.0, device="cuda")
    distributed.all_reduce(tensor)
    torch.cuda.synchronize()
    expect(bool((tensor == 3).all()), "a sum over one rank")
    distributed.destroy_process_group()
    return {"version": ".".join(map(str, torch.cuda.nccl.version()))}


def triton():
    torch = torch_on_gpu()
    import triton
    from triton_kernel import add
    a, b = torch.arange(MIB, dtype=torch.float32, device="cuda"), torch.ones(MIB, device="cuda")
    out = torch.empty_like(a)
    add[(MIB // 1024,)](a, b, out, MIB, BLOCK=1024)
    expect(bool((out == a + 1).all()), "a Triton kernel's sum")
    return {"version": triton.__version__}


def cupy():
    import cupy
    a = cupy.arange(MIB, dtype=cupy.float32)
    expect(bool((cupy.asnumpy(a * 2) == 2 * cupy.asnumpy(a)).all()), "a CuPy product")
    kernel = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x + 1", "plus_one")
    expect(bool((cupy.asnumpy(kernel(a)) == cupy.asnumpy(a) + 1).all()), "a CuPy kernel")
    return {"version": cupy.__version__}


def jax():
    # Otherwise it takes three quarters of the device in one allocation.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as numpy
    if jax.default_backend() != "gpu":
        missing("JAX sees no GPU")
    a = numpy.arange(MIB, dtype=numpy.float32).reshape(1024, 1024)
    expect(bool((jax.jit(lambda x: x + x.T)(a) == a + a.T).all()), "a jitted sum")
    return {"version": jax.__version__}


KINDS = {"pytorch": pytorch, "cublas": cublas, "cudnn": cudnn, "nccl": nccl, "triton": triton, "cupy": cupy, "jax": jax}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in KINDS:
        sys.exit(__doc__)
    print(json.dumps(KINDS[sys.argv[1]]()))
