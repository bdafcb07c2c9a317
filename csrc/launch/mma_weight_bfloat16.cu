#include <cuda_bf16.h>

#include "mma_weight.cuh"

namespace deconv {
template cudaError_t launch_mma_weight<__nv_bfloat16, false>(const Problem&, const MmaWeightPlan&, const Operands&,
                                                             cudaStream_t);
}  // namespace deconv
