#include "depthwise_rows.cuh"

namespace deconv {
template cudaError_t launch_depthwise<float>(const Problem&, const DepthwiseRowsPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
