#include "gather_weight.cuh"

namespace deconv {
template cudaError_t launch_gather_weight<float>(const Problem&, const GatherWeightPlan&, const Operands&,
                                                 cudaStream_t);
}  // namespace deconv
