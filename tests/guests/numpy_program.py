"""A program that calls the driver from Python: adds up with numpy what it has read back from the device."""
import ctypes

import numpy

cuda = ctypes.CDLL("libcuda.so.1")


def check(result: int) -> None:
    if result != 0:
        raise SystemExit(f"driver error {result}")


device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
values = numpy.arange(1 << 20, dtype=numpy.float32)
back = numpy.zeros_like(values)
check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(values.nbytes)))
check(cuda.cuMemcpyHtoD_v2(address, values.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(values.nbytes)))
check(cuda.cuMemcpyDtoH_v2(back.ctypes.data_as(ctypes.c_void_p), address, ctypes.c_size_t(values.nbytes)))
check(cuda.cuMemFree_v2(address))
print(numpy.linalg.norm(back[:1000]), back.sum())
