// Synchronisations: the guest has waited anyway, so this is where events are digested and the report is written.
#include "interpose/handlers.hpp"
#include "interpose/real_driver.hpp"
#include "interpose/shim.hpp"

namespace hmshim::interpose {

#define HMSHIM_SYNCHRONIZE(symbol, params, args) \
  CUresult on_##symbol params {                  \
    const CUresult result = real().symbol args;  \
    Shim::get().waited();                        \
    return result;                               \
  }

HMSHIM_SYNCHRONIZE(cuCtxSynchronize, (), ())
HMSHIM_SYNCHRONIZE(cuCtxSynchronize_v2, (CUcontext context), (context))
HMSHIM_SYNCHRONIZE(cuStreamSynchronize, (CUstream stream), (stream))
HMSHIM_SYNCHRONIZE(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
HMSHIM_SYNCHRONIZE(cuEventSynchronize, (CUevent event), (event))

}  // namespace hmshim::interpose
