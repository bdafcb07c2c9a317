#include "depthwise_rows.cuh"

namespace deconv {
template cudaError_t launch_depthwise<__half>(const Problem&, const DepthwiseRowsPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
