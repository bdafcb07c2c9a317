// Planners of col2im, and what its launchers ask them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/correlation.h"
#include "families/col2im/plan.h"
#include "planner/plan.h"

namespace deconv {

// Forward, and grad_input of stride 1, in float16, bfloat16 and float32 on compute capability 8.0 and later; nothing if
// refused.
std::optional<Plan> plan_col2im_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);

// The same on sm_90, except tf32x3, if TMA loads the source.
std::optional<Plan> plan_col2im_sm90(const Problem& problem, const Device& device, std::vector<Candidate>* considered);

std::string describe(const Col2imConvPlan& plan, DType dtype);
std::string describe_launch(const Col2imConvPlan& plan);
std::string describe(const Col2imSm90Plan& plan, DType dtype);
std::string describe_launch(const Col2imSm90Plan& plan);

// Elements of one store along the results of one source column.
int col2im_vector_result(const Problem& problem, const Col2imWalk& walk);

}  // namespace deconv
