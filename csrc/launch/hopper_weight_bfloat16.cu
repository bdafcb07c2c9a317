#include <cuda_bf16.h>

#include "hopper_weight.cuh"

namespace deconv {
template cudaError_t launch_hopper_weight<__nv_bfloat16, 1>(const Problem&, const HopperWeightPlan&, const Operands&,
                                                            cudaStream_t);
}  // namespace deconv
