// Planner of sub_pixel: strides that divide the kernel, few output channels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lowerings/sub_pixel/plan.h"
#include "planner/plan.h"

namespace deconv {

// All directions in float16, bfloat16 and float32, if the GPU has tensor cores; nothing if refused. options: of the
// inner plan.
std::optional<Plan> plan_sub_pixel(const Problem& problem, const Device& device, const PlannerOptions& options,
                                   std::vector<Candidate>* considered);

std::string describe(const SubPixelPlan& plan, DType dtype);
std::string describe_launch(const SubPixelPlan& plan);

}  // namespace deconv
