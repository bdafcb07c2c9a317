#include "gather_conv.cuh"

namespace deconv {
template cudaError_t launch_gather_conv<double>(const Problem&, const GatherConvPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
