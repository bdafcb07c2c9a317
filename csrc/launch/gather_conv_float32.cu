#include "gather_conv.cuh"

namespace deconv {
template cudaError_t launch_gather_conv<float>(const Problem&, const GatherConvPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
