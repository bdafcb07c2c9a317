// The gather family's planners (plan.h calls them) and what they share.
#pragma once

#include "families/simt/plan.h"
#include "planner/plan.h"

namespace deconv {

Plan plan_gather_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
Plan plan_gather_weight(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
std::string describe(const GatherConvPlan& plan, DType dtype);
std::string describe_launch(const GatherConvPlan& plan);
std::string describe(const GatherWeightPlan& plan, DType dtype);
std::string describe_launch(const GatherWeightPlan& plan);

// Shared memory that lets two blocks share a multiprocessor; each also takes 1 KiB for itself.
inline int gather_shared_bytes(const Device& device) { return device.shared_bytes_per_block / 2 - (1 << 10); }

}  // namespace deconv
