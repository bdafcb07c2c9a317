// Says which plan a call would use, and why.
#pragma once

#include <string>

#include "planner/plan.h"

namespace deconv {

// As text. tuned: the autotuned plan, if there is one.
std::string explain(const Problem& problem, const Device& device, const PlannerOptions& options = {},
                    const TunedPlan* tuned = nullptr);

// As a JSON object with device, kernel, estimate_ms, workspace_bytes, measured_ms (if autotuned), candidates ([kernel,
// estimate_ms] each) and refusals ([kernel, reason] each).
std::string plan_json(const Problem& problem, const Device& device, const PlannerOptions& options,
                      const TunedPlan* tuned);
std::string json_string(const std::string& text);  // quoted and escaped

}  // namespace deconv
