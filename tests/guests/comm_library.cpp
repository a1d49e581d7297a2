// A library that shares its device buffers with other processes, as collective communication does.
#include <cuda.h>

#include <cstddef>

// Kept, as a library keeps errors: a call in tail position would return to the program, not to the library.
extern "C" {
CUresult comm_last = CUDA_SUCCESS;
}

extern "C" CUresult comm_allocate(CUdeviceptr* buffer, std::size_t bytes) {
  comm_last = cuMemAlloc(buffer, bytes);
  return comm_last;
}

extern "C" CUresult comm_share(CUipcMemHandle* handle, CUdeviceptr buffer) {
  comm_last = cuIpcGetMemHandle(handle, buffer);
  return comm_last;
}
