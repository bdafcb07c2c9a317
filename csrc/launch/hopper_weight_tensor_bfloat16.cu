#include <cuda_bf16.h>

#include "hopper_weight_tensor.cuh"

namespace deconv {
template cudaError_t launch_hopper_weight_tensor<__nv_bfloat16>(const Problem&, const HopperWeightTensorPlan&,
                                                                const Operands&, cudaStream_t);
}  // namespace deconv
