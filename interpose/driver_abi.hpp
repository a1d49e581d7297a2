// <cuda.h> for code that names the driver's exports as they are: cuStreamBeginCapture is the export of that name, not
// the _v2 that the header's macro makes of it. Only the hooked names that are macros too need this; the others are left
// alone.
#pragma once

#include <cuda.h>

#undef cuGetProcAddress
#undef cuGraphExecKernelNodeSetParams
#undef cuGraphExecUpdate
#undef cuGraphInstantiate
#undef cuMemAdvise
#undef cuMemHostRegister
#undef cuMemPrefetchAsync
#undef cuMemcpy3DBatchAsync
#undef cuMemcpyBatchAsync
#undef cuStreamBeginCapture
