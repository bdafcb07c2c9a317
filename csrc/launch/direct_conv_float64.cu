#include "direct_conv.cuh"

namespace deconv {
template cudaError_t launch_direct_conv<double>(const Problem&, const DirectConvPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
