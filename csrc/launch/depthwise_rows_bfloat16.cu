#include "depthwise_rows.cuh"

namespace deconv {
template cudaError_t launch_depthwise<__nv_bfloat16>(const Problem&, const DepthwiseRowsPlan&, const Operands&,
                                                     cudaStream_t);
}  // namespace deconv
