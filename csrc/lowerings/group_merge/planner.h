// Planner of the merged family: grad_weight of groups of few channels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lowerings/group_merge/plan.h"
#include "planner/plan.h"

namespace deconv {

// grad_weight in float16, bfloat16 and float32 where tensor cores serve neighbouring groups together; nothing where it
// refuses. options: of the families that may serve those. best_ms: of the families considered before.
std::optional<Plan> plan_merged(const Problem& problem, const Device& device, const PlannerOptions& options,
                                double best_ms, std::vector<Candidate>* considered);

std::string describe(const GroupMergePlan& plan, DType dtype);
std::string describe_launch(const GroupMergePlan& plan);

}  // namespace deconv
