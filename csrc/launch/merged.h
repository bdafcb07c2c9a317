// Launcher of the merged family.
#pragma once

#include <cuda_runtime_api.h>

#include "../operands.h"
#include "../plan.h"

namespace deconv {

cudaError_t launch_merged(const Problem& problem, const MergedPlan& plan, const Operands& operands,
                          cudaStream_t stream);

}  // namespace deconv
