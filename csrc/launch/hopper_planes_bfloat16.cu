#include <cuda_bf16.h>

#include "hopper_planes.cuh"

namespace deconv {
template cudaError_t launch_hopper_planes<__nv_bfloat16>(const Problem&, const HopperPlanesPlan&, const Operands&,
                                                         cudaStream_t);
}  // namespace deconv
