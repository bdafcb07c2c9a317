// Planners of igemm_sm90, and what their launchers ask.
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
#include "planner/plan.h"

namespace deconv {

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

// All tiles of a kernel: `tiles` hands each to its argument, as plan, bytes of workspace and ms. None if there is a
// reason why the kernel refuses the problem.
template <class Tiles>
std::optional<Plan> search_tiles(const Problem& problem, const std::string& refusal, std::vector<Candidate>* considered,
                                 const Tiles& tiles) {
  std::optional<Plan> best;
  if (refusal.empty()) {
    tiles([&](const auto& plan, int64_t workspace_bytes, double ms) {
      consider_plan(best, "igemm_sm90 family", plan, workspace_bytes, ms, problem.dtype, considered);
    });
  } else if (considered) {
    considered->push_back({"igemm_sm90 family", 0, refusal});
  }
  return best;
}
// How the weights lie, packed, where pixels are operand A: of each group and tile of so many result channels the phases
// of the height, chunks, phases of the width, taps.
IgemmSm90Plan weights_as_b(const Problem& problem, int channels, int phases = 1, int taps = 1);
// Where each block keeps the weights of one column, and each warpgroup has tiles of its own. 0: too many columns.
int resident_blocks(const Device& device, int64_t tiles, int warpgroups, int64_t columns);

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
