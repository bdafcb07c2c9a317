#include "mma_weight.cuh"

namespace deconv {
template cudaError_t launch_mma_weight<float, true>(const Problem&, const MmaWeightPlan&, const Operands&,
                                                    cudaStream_t);
}  // namespace deconv
