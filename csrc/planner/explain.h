// Every piece of the answer to "which plan would this call use, and why".
#pragma once

#include <string>

#include "planner/plan.h"

namespace deconv {

// As text; `tuned` where the plan was chosen by its time.
std::string explain(const Problem& problem, const Device& device, const PlannerOptions& options = {},
                    const TunedPlan* tuned = nullptr);

// The same for programs: a JSON object with device, kernel, estimate_ms, workspace_bytes, measured_ms where the plan
// was chosen by its time, candidates ([kernel, estimate_ms] each) and refusals ([kernel, reason] each).
std::string plan_json(const Problem& problem, const Device& device, const PlannerOptions& options,
                      const TunedPlan* tuned);
std::string json_string(const std::string& text);  // quoted and escaped

}  // namespace deconv
