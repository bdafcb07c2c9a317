#include "narrow_conv.cuh"

namespace deconv {
template cudaError_t launch_narrow_conv<float, 1>(const Problem&, const NarrowConvPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
