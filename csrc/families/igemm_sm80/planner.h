// Planners of igemm_sm80.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/problem.h"
#include "families/igemm_sm80/plan.h"

namespace deconv {

struct Candidate;
struct Device;
struct Plan;

std::string describe(const IgemmSm80Plan& plan, DType dtype);
std::string describe_launch(const IgemmSm80Plan& plan);
std::string describe(const WgradSm80Plan& plan, DType dtype);
std::string describe_launch(const WgradSm80Plan& plan);

// Nothing if igemm_sm80 refuses the problem; `considered` then has the reason.
std::optional<Plan> plan_mma_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
std::optional<Plan> plan_mma_weight(const Problem& problem, const Device& device, std::vector<Candidate>* considered);

// 16-bit FLOP a cycle and multiprocessor, by mma.sync with float32 sums: from data sheets; 9.0 measured on an H200.
double sm80_tensor_rate(int capability);

// True if results leave in packs, given a result aligned to 16 bytes: 16 bytes of adjacent channels, or 4 bytes of
// adjacent columns.
bool sm80_vector_result(const Problem& problem, const IgemmSm80Plan& plan);

}  // namespace deconv
