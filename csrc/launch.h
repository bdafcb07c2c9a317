// Plan, problem and pointers in, kernels on the caller's stream; no torch.
#pragma once

#include <cuda_runtime_api.h>

#include "operands.h"
#include "plan.h"

namespace deconv {

cudaError_t launch(const Problem& problem, const Plan& plan, const Operands& operands, cudaStream_t stream);

// Whether the current device can run the kernels of this build.
bool kernels_load();

}  // namespace deconv
