#include "hopper_weight.cuh"

namespace deconv {
template cudaError_t launch_hopper_weight<float, 1>(const Problem&, const HopperWeightPlan&, const Operands&,
                                                    cudaStream_t);
}  // namespace deconv
