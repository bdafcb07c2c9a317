// Planner of the subpixel family: few output channels, strides that divide the kernel.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lowerings/sub_pixel/plan.h"
#include "planner/plan.h"

namespace deconv {

// All directions in float16, bfloat16 and float32 where tensor cores serve the problem without stride; nothing where it
// refuses. options: of the families that may serve that.
std::optional<Plan> plan_sub_pixel(const Problem& problem, const Device& device, const PlannerOptions& options,
                                   std::vector<Candidate>* considered);

std::string describe(const SubPixelPlan& plan, DType dtype);
std::string describe_launch(const SubPixelPlan& plan);

}  // namespace deconv
