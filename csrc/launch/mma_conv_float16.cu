#include <cuda_fp16.h>

#include "mma_conv.cuh"

namespace deconv {
template cudaError_t launch_mma_conv<__half, false>(const Problem&, const MmaConvPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
