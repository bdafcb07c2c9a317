#include <cuda_bf16.h>

#include "mma_conv.cuh"

namespace deconv {
template cudaError_t launch_mma_conv<__nv_bfloat16, false>(const Problem&, const MmaConvPlan&, const Operands&,
                                                           cudaStream_t);
}  // namespace deconv
