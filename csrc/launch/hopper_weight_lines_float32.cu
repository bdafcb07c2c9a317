#include "hopper_weight_lines.cuh"

namespace deconv {
template cudaError_t launch_hopper_weight_lines<float, 2>(const Problem&, const HopperWeightLinesPlan&, const Operands&,
                                                          cudaStream_t);
}  // namespace deconv
