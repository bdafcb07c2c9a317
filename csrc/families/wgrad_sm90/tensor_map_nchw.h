// Tensor maps (TMA) of the operands of the Hopper family's grad_weight by lines.
#pragma once

#include <cuda.h>

#include "core/problem.h"
#include "families/wgrad_sm90/plan_rs_nchw.h"

namespace deconv {

// False if the driver has no tensor maps or refuses these tensors.
bool encode_lines_maps(const Problem& problem, const HopperWeightLinesPlan& plan, const void* x, const void* y,
                       CUtensorMap* x_map, CUtensorMap* y_map);

}  // namespace deconv
