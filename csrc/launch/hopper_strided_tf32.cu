#include "hopper_strided.cuh"

namespace deconv {
template cudaError_t launch_hopper_strided<float>(const Problem&, const HopperStridedPlan&, const Operands&,
                                                  cudaStream_t);
}  // namespace deconv
