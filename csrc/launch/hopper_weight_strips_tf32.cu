#include "hopper_weight_strips.cuh"

namespace deconv {
template cudaError_t launch_hopper_weight_strips<1>(const Problem&, const HopperWeightStripsPlan&, const Operands&,
                                                    cudaStream_t);
}  // namespace deconv
