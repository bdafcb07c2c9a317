// Launcher of the merged family.
#pragma once

#include <cuda_runtime_api.h>

#include "core/operands.h"
#include "families/registry.h"

namespace deconv {

cudaError_t launch_merged(const Problem& problem, const MergedPlan& plan, const Operands& operands,
                          cudaStream_t stream);

}  // namespace deconv
