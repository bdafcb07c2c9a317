// Planners of strips and row_stream: each returns a plan and its estimate in ms.
#pragma once

#include <optional>
#include <utility>

#include "families/depthwise/plan.h"
#include "planner/plan.h"

namespace deconv {

std::pair<DepthwiseStripsPlan, double> plan_strips(const Problem& problem, const Device& device);
// Nothing if row_stream does not serve the problem.
std::optional<std::pair<DepthwiseRowsPlan, double>> plan_row_stream(const Problem& problem, const Device& device);

// True if channels are innermost in the result (grad_weight: in the input).
bool has_inner_channels(const Problem& problem);
// True if each `count` neighbours along dimension `inner` of x or y are one aligned access.
bool moves_packs(const Problem& problem, const Tensor4& tensor, int inner, int64_t count);

std::string describe(const DepthwiseRowsPlan& plan, DType dtype);
std::string describe_launch(const DepthwiseRowsPlan& plan);
std::string describe(const DepthwiseStripsPlan& plan, DType dtype);
std::string describe_launch(const DepthwiseStripsPlan& plan);

}  // namespace deconv
