// Tensor maps (TMA) of the operands of the Hopper family's grad_weight.
#pragma once

#include <cuda.h>

#include "core/problem.h"
#include "families/wgrad_sm90/plan_tma_nhwc.h"

namespace deconv {

// The input's map and one for each of the plan's planes of grad_output, the tensors at `x` and `y`. False if the driver
// has no tensor maps or refuses these tensors.
bool encode_weight_maps(const Problem& problem, const HopperWeightCopies& plan, const void* x, const void* y,
                        CUtensorMap* x_map, CUtensorMap* y_maps);

}  // namespace deconv
