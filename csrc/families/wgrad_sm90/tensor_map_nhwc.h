// Tensor maps (TMA) of the operands of wgrad_sm90's ss and rs_nhwc.
#pragma once

#include <cuda.h>

#include "core/problem.h"
#include "families/wgrad_sm90/plan_tma_nhwc.h"

namespace deconv {

// The map of the input at `x`, and one for each of the plan's source phases of grad_output at `y`. False if the driver
// has no tensor maps or refuses these tensors.
bool encode_weight_maps(const Problem& problem, const WgradTma& plan, const void* x, const void* y, CUtensorMap* x_map,
                        CUtensorMap* y_maps);

}  // namespace deconv
