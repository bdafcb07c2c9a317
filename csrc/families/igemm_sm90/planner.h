// Planners of the Hopper family (plan.h calls them).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/problem.h"
#include "families/col2im/plan_whole_images.h"
#include "families/igemm_sm90/plan.h"
#include "families/igemm_sm90/plan_1tap.h"
#include "families/igemm_sm90/plan_all_phases.h"
#include "families/igemm_sm90/plan_stride2.h"
#include "families/wgrad_sm90/plan_rs_nchw.h"
#include "families/wgrad_sm90/plan_rs_nhwc.h"
#include "families/wgrad_sm90/plan_ss.h"

namespace deconv {

struct Candidate;
struct Device;
struct Plan;
struct PlannerOptions;

std::string describe(const IgemmSm90Plan& plan, DType dtype);
std::string describe_launch(const IgemmSm90Plan& plan);
std::string describe(const OneTapPlan& plan, DType dtype);
std::string describe_launch(const OneTapPlan& plan);
std::string describe(const Stride2Plan& plan, DType dtype);
std::string describe_launch(const Stride2Plan& plan);
std::string describe(const WholeImagesPlan& plan, DType dtype);
std::string describe_launch(const WholeImagesPlan& plan);
std::string describe(const AllPhasesPlan& plan, DType dtype);
std::string describe_launch(const AllPhasesPlan& plan);
std::string describe(const WgradRsNchwPlan& plan, DType dtype);
std::string describe_launch(const WgradRsNchwPlan& plan);
std::string describe(const WgradSsPlan& plan, DType dtype);
std::string describe_launch(const WgradSsPlan& plan);
std::string describe(const WgradRsNhwcPlan& plan, DType dtype);
std::string describe_launch(const WgradRsNhwcPlan& plan);

// Nothing if the family refuses the problem; `considered` then says why.
std::optional<Plan> plan_igemm_sm90(const Problem& problem, const Device& device, const PlannerOptions& options,
                                    std::vector<Candidate>* considered);
// Of blocks alone (Problem::blocks).
std::optional<Plan> plan_one_tap(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
// Whether every element of every block is one of the output's.
bool one_tap_have_whole_blocks(const Problem& problem);
std::optional<Plan> plan_stride2(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
std::optional<Plan> plan_whole_images(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
std::optional<Plan> plan_all_phases(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
// Whether results of two rows of its operand B are neighbours in memory, aligned to two elements if the base is.
bool all_phases_pairs(const Problem& problem);
std::optional<Plan> plan_wgrad_rs_nchw(const Problem& problem, const Device& device,
                                       std::vector<Candidate>* considered);
std::optional<Plan> plan_wgrad_ss(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
std::optional<Plan> plan_wgrad_rs_nhwc(const Problem& problem, const Device& device,
                                       std::vector<Candidate>* considered);

inline const char* name(WgradShare share) {
  return share == WgradShare::kTaps            ? "taps"
         : share == WgradShare::kInputChannels ? "input channels"
                                               : "output channels";
}

// Output channels of a gradient of the weight that lie apart, between its taps: stores of single elements.
inline bool is_scattered(const Tensor4& weight) { return weight.stride[1] != 1 && weight.size[2] * weight.size[3] > 1; }

// `count` neighbouring groups as one, whose weights between them are zeros (problem.w does not hold these).
inline Problem with_merged_groups(Problem problem, int64_t count) {
  problem.groups /= count;
  return problem;
}

// The same result from a source whose channels are all taps of all channels (im2col), through one tap. The tensors stay
// as they are: source and weight still lie as `problem` says.
Problem im2col_problem(const Problem& problem);
// Elements from one tap of the weight to the next.
inline int64_t im2col_tap_step(const Problem& problem) { return problem.w.stride[problem.axis[1].kernel > 1 ? 3 : 2]; }

// Channels of a group or of merged ones, on either side where it matters.
inline constexpr int64_t kSm90MinChannels = 16;
// Weights packed beforehand: of their kernel, ms; and whether they take no more than is allowed, packed with zeros,
// where `weight_bytes` are the weights' own.
constexpr double sm90_pack_ms(int64_t packed_bytes) { return 1e-3 + 0.5e-9 * static_cast<double>(packed_bytes); }
bool sm90_may_pack(int64_t packed_bytes, int64_t weight_bytes);

// How many neighbours of a block's row one store takes, up to `most`, given a base pointer of as many.
int sm90_blocks_unit(const Problem& problem, int most);
// How many neighbours one store takes, given a base pointer of 16 bytes and the plan's groups merged.
int sm90_vector_result(const Problem& problem, const IgemmSm90Plan& plan);

}  // namespace deconv
