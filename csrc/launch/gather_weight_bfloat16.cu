#include "gather_weight.cuh"

namespace deconv {
template cudaError_t launch_gather_weight<__nv_bfloat16>(const Problem&, const GatherWeightPlan&, const Operands&,
                                                         cudaStream_t);
}  // namespace deconv
