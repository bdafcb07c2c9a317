// The planners of the depthwise family's kernels: a plan and its milliseconds.
#pragma once

#include <optional>
#include <utility>

#include "families/depthwise/plan.h"
#include "planner/plan.h"

namespace deconv {

std::pair<DepthwiseStripsPlan, double> plan_strips(const Problem& problem, const Device& device);
// Nothing where row_stream does not serve the problem.
std::optional<std::pair<DepthwiseRowsPlan, double>> plan_row_stream(const Problem& problem, const Device& device);

// True if channels lie innermost in the result, or in the input of grad_weight.
bool has_inner_channels(const Problem& problem);
// True if every `count` neighbours along dimension `inner` of x or y lie at a multiple of their bytes.
bool moves_packs(const Problem& problem, const Tensor4& tensor, int inner, int64_t count);

std::string describe(const DepthwiseRowsPlan& plan, DType dtype);
std::string describe_launch(const DepthwiseRowsPlan& plan);
std::string describe(const DepthwiseStripsPlan& plan, DType dtype);
std::string describe_launch(const DepthwiseStripsPlan& plan);

}  // namespace deconv
