#include <cuda_fp16.h>

#include "mma_weight.cuh"

namespace deconv {
template cudaError_t launch_mma_weight<__half, false>(const Problem&, const MmaWeightPlan&, const Operands&,
                                                      cudaStream_t);
}  // namespace deconv
