#include <cuda_bf16.h>

#include "hopper_pictures.cuh"

namespace deconv {
template cudaError_t launch_hopper_pictures<__nv_bfloat16>(const Problem&, const HopperPicturesPlan&, const Operands&,
                                                           cudaStream_t);
}  // namespace deconv
