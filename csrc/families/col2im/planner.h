// Planners of the col2im family, and what its launchers ask them. Family: few result channels, strided.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/correlation.h"
#include "families/col2im/plan.h"
#include "planner/plan.h"

namespace deconv {

// Forward, and grad_input of stride 1, in float16, bfloat16 and float32 on compute capability 8.0 and later; nothing
// where it refuses.
std::optional<Plan> plan_col2im_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);

// The same on Hopper, but for strict float32, of sources that tensor copies take.
std::optional<Plan> plan_col2im_sm90(const Problem& problem, const Device& device, std::vector<Candidate>* considered);

std::string describe(const Col2imConvPlan& plan, DType dtype);
std::string describe_launch(const Col2imConvPlan& plan);
std::string describe(const Col2imSm90Plan& plan, DType dtype);
std::string describe_launch(const Col2imSm90Plan& plan);

// Elements that one store may take along the results of one source column.
int col2im_vector_result(const Problem& problem, const Col2imWalk& walk);

}  // namespace deconv
