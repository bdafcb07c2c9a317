#include "rows_conv.cuh"

namespace deconv {
template cudaError_t launch_rows_conv<__half>(const Problem&, const RowsConvPlan&, const Operands&, cudaStream_t);
}  // namespace deconv
