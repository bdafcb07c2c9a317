#include <cuda_bf16.h>

#include "hopper_conv.cuh"

namespace deconv {
template cudaError_t launch_hopper_conv<__nv_bfloat16, 1>(const Problem&, const HopperConvPlan&, const Operands&,
                                                          cudaStream_t);
}  // namespace deconv
