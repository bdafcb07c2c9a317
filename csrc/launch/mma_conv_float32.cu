#include "mma_conv.cuh"

namespace deconv {
template cudaError_t launch_mma_conv<float, true>(const Problem&, const MmaConvPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
