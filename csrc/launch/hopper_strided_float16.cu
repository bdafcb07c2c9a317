#include <cuda_fp16.h>

#include "hopper_strided.cuh"

namespace deconv {
template cudaError_t launch_hopper_strided<__half>(const Problem&, const HopperStridedPlan&, const Operands&,
                                                   cudaStream_t);
}  // namespace deconv
