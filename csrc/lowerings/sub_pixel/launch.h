// Launcher of the subpixel family.
#pragma once

#include <cuda_runtime_api.h>

#include "core/operands.h"
#include "families/registry.h"

namespace deconv {

cudaError_t launch_subpixel(const Problem& problem, const SubpixelPlan& plan, const Operands& operands,
                            cudaStream_t stream);

}  // namespace deconv
