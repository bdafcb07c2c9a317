// Launches the kernels of a plan on the caller's stream; no torch. launch/instances.py writes its source at build time.
#pragma once

#include <cuda_runtime_api.h>

#include "core/operands.h"
#include "planner/plan.h"

namespace deconv {

cudaError_t launch(const Problem& problem, const Plan& plan, const Operands& operands, cudaStream_t stream);

}  // namespace deconv
