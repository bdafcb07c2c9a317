// The depthwise family's planner (plan.h calls it).
#pragma once

#include <optional>

#include "families/depthwise/plan.h"
#include "planner/plan.h"

namespace deconv {

// Nothing where the family does not serve the problem; `considered` then holds the reason.
std::optional<Plan> plan_depthwise(const Problem& problem, const Device& device, const PlannerOptions& options,
                                   std::vector<Candidate>* considered);
// Of layers that enlarge (DepthwiseBlocksPlan), for plan_depthwise.
std::optional<Plan> plan_depthwise_blocks(const Problem& problem, const Device& device);
std::optional<Plan> plan_depthwise_packs(const Problem& problem, const Device& device);  // DepthwisePacksPlan
// Of small kernels (DepthwiseRowsPlan), likewise.
std::optional<Plan> plan_depthwise_rows(const Problem& problem, const Device& device);
std::string describe(const DepthwiseBlocksPlan& plan, DType dtype);
std::string describe_launch(const DepthwiseBlocksPlan& plan);
std::string describe(const DepthwisePacksPlan& plan, DType dtype);
std::string describe_launch(const DepthwisePacksPlan& plan);
std::string describe(const DepthwiseRowsPlan& plan, DType dtype);
std::string describe_launch(const DepthwiseRowsPlan& plan);
std::string describe(const DepthwiseStripsPlan& plan, DType dtype);
std::string describe_launch(const DepthwiseStripsPlan& plan);

}  // namespace deconv
