#include "depthwise.cuh"

namespace deconv {
template cudaError_t launch_depthwise<float>(const Problem&, const DepthwisePlanesPlan&, const Operands&, cudaStream_t);
template cudaError_t launch_depthwise<float>(const Problem&, const DepthwiseChannelsPlan&, const Operands&,
                                             cudaStream_t);
template cudaError_t launch_depthwise<float>(const Problem&, const DepthwiseBlocksPlan&, const Operands&, cudaStream_t);
template cudaError_t launch_depthwise<float>(const Problem&, const DepthwisePacksPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
