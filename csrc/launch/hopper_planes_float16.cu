#include <cuda_fp16.h>

#include "hopper_planes.cuh"

namespace deconv {
template cudaError_t launch_hopper_planes<__half>(const Problem&, const HopperPlanesPlan&, const Operands&,
                                                  cudaStream_t);
}  // namespace deconv
