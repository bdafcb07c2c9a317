#include <cuda_fp16.h>

#include "hopper_pictures.cuh"

namespace deconv {
template cudaError_t launch_hopper_pictures<__half>(const Problem&, const HopperPicturesPlan&, const Operands&,
                                                    cudaStream_t);
}  // namespace deconv
