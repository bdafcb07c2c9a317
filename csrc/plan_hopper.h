// Planners of the Hopper family (plan.h calls them).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hopper_plan.h"
#include "hopper_weight_plan.h"
#include "hopper_weight_tensor_plan.h"
#include "problem.h"

namespace deconv {

struct Candidate;
struct Device;
struct Plan;

std::string describe(const HopperConvPlan& plan, DType dtype);
std::string describe(const HopperWeightPlan& plan, DType dtype);
std::string describe(const HopperWeightTensorPlan& plan, DType dtype);

// Nothing if the family refuses the problem; `considered` then says why.
std::optional<Plan> plan_hopper_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
std::optional<Plan> plan_hopper_weight(const Problem& problem, const Device& device,
                                       std::vector<Candidate>* considered);
std::optional<Plan> plan_hopper_weight_tensor(const Problem& problem, const Device& device,
                                              std::vector<Candidate>* considered);

// How many neighbours one store takes, given a base pointer of 16 bytes.
int hopper_vector_result(const Problem& problem, const HopperConvPlan& plan);

}  // namespace deconv
