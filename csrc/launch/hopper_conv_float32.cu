#include "hopper_conv.cuh"

namespace deconv {
template cudaError_t launch_hopper_conv<float, 2>(const Problem&, const HopperConvPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
