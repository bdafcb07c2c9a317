#include "col2im_hopper.cuh"

namespace deconv {
template cudaError_t launch_col2im_hopper<float>(const Problem&, const Col2imHopperPlan&, const Operands&,
                                                 cudaStream_t);
}  // namespace deconv
