#include <cuda_fp16.h>

#include "hopper_folded.cuh"

namespace deconv {
template cudaError_t launch_hopper_folded<__half>(const Problem&, const HopperFoldedPlan&, const Operands&,
                                                  cudaStream_t);
}  // namespace deconv
