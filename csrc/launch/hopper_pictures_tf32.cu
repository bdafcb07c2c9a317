#include "hopper_pictures.cuh"

namespace deconv {
template cudaError_t launch_hopper_pictures<float>(const Problem&, const HopperPicturesPlan&, const Operands&,
                                                   cudaStream_t);
}  // namespace deconv
