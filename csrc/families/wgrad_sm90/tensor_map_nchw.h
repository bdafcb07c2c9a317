// Tensor maps (TMA) of the operands of wgrad_sm90's rs_nchw.
#pragma once

#include <cuda.h>

#include "core/problem.h"
#include "families/wgrad_sm90/plan_rs_nchw.h"

namespace deconv {

// x_map: (width, channel, height, image). y_map sees a channel's image as one line, and every channel_kinds-th channel.
// False if the driver has no tensor maps or refuses these tensors.
bool encode_lines_maps(const Problem& problem, const WgradRsNchwPlan& plan, const void* x, const void* y,
                       CUtensorMap* x_map, CUtensorMap* y_map);

}  // namespace deconv
