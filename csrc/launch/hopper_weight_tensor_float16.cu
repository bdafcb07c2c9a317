#include <cuda_fp16.h>

#include "hopper_weight_tensor.cuh"

namespace deconv {
template cudaError_t launch_hopper_weight_tensor<__half>(const Problem&, const HopperWeightTensorPlan&, const Operands&,
                                                         cudaStream_t);
}  // namespace deconv
