#include "col2im.cuh"

namespace deconv {
template cudaError_t launch_col2im_conv<__half, 1>(const Problem&, const Col2imConvPlan&, const Operands&,
                                                   cudaStream_t);
}  // namespace deconv
