#include "depthwise.cuh"

namespace deconv {
template cudaError_t launch_depthwise<double>(const Problem&, const DepthwisePlan&, const Operands&, cudaStream_t);
}  // namespace deconv
