// Planner of group_merge: grad_weight of groups with few channels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lowerings/group_merge/plan.h"
#include "planner/plan.h"

namespace deconv {

// grad_weight in float16, bfloat16 and float32, if the GPU has tensor cores; nothing if refused. options: of the inner
// plan. best_ms: lowest estimate so far.
std::optional<Plan> plan_merged(const Problem& problem, const Device& device, const PlannerOptions& options,
                                double best_ms, std::vector<Candidate>* considered);

std::string describe(const GroupMergePlan& plan, DType dtype);
std::string describe_launch(const GroupMergePlan& plan);

}  // namespace deconv
