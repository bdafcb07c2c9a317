#include "hopper_planes.cuh"

namespace deconv {
template cudaError_t launch_hopper_planes<float>(const Problem&, const HopperPlanesPlan&, const Operands&,
                                                 cudaStream_t);
}  // namespace deconv
