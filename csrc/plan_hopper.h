// Planners of the Hopper family (plan.h calls them).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hopper_plan.h"
#include "hopper_weight_plan.h"
#include "problem.h"

namespace deconv {

struct Candidate;
struct Device;
struct Plan;

std::string describe(const HopperConvPlan& plan, DType dtype);
std::string describe(const HopperWeightPlan& plan, DType dtype);

// Nothing if the family refuses the problem; `considered` then says why.
std::optional<Plan> plan_hopper_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
std::optional<Plan> plan_hopper_weight(const Problem& problem, const Device& device,
                                       std::vector<Candidate>* considered);

// The source channels_last, each group's channels padded to 16 bytes: how HopperConvPlan::repack lays it out.
Tensor4 hopper_repacked(const Problem& problem);

// Given base pointers of 16 bytes: whether channels can be loaded 16 bytes at once; how many neighbours one store
// takes.
bool hopper_vector_source(const Problem& problem);
int hopper_vector_result(const Problem& problem, const HopperConvPlan& plan);

}  // namespace deconv
