// Planner of the direct family. Family: few channels a group on either side, too few for tensor cores.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan.h"

namespace deconv {

// Forward and grad_input in every element type; nothing where it refuses.
std::optional<Plan> plan_direct_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);

std::string describe(const DirectConvPlan& plan, DType dtype);

}  // namespace deconv
