#include "col2im.cuh"

namespace deconv {
template cudaError_t launch_col2im_conv<float, 2>(const Problem&, const Col2imConvPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
