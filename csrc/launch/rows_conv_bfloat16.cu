#include "rows_conv.cuh"

namespace deconv {
template cudaError_t launch_rows_conv<__nv_bfloat16>(const Problem&, const RowsConvPlan&, const Operands&,
                                                     cudaStream_t);
}  // namespace deconv
