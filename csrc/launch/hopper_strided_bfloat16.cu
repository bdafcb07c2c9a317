#include <cuda_bf16.h>

#include "hopper_strided.cuh"

namespace deconv {
template cudaError_t launch_hopper_strided<__nv_bfloat16>(const Problem&, const HopperStridedPlan&, const Operands&,
                                                          cudaStream_t);
}  // namespace deconv
