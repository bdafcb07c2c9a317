#include "narrow_conv.cuh"

namespace deconv {
template cudaError_t launch_narrow_conv<__half, 1>(const Problem&, const NarrowConvPlan&, const Operands&,
                                                   cudaStream_t);
}  // namespace deconv
