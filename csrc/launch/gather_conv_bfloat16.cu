#include "gather_conv.cuh"

namespace deconv {
template cudaError_t launch_gather_conv<__nv_bfloat16>(const Problem&, const GatherConvPlan&, const Operands&,
                                                       cudaStream_t);
}  // namespace deconv
