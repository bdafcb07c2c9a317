// The gather family's planners (plan.h calls them) and what they share.
#pragma once

#include "families/registry.h"

namespace deconv {

Plan plan_gather_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
Plan plan_gather_weight(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
std::string describe(const GatherConvPlan& plan, DType dtype);
std::string describe(const GatherWeightPlan& plan, DType dtype);

// Shared memory that lets two blocks share a multiprocessor; each also takes 1 KiB for itself.
inline int gather_shared_bytes(const Device& device) { return device.shared_bytes_per_block / 2 - (1 << 10); }

// Lists a tile with its refusal or its plan, and keeps the plan if it is the best so far.
template <class Tile, class MakePlan>
void consider_tile(std::optional<Plan>& best, const Tile& tile, const char* refusal, const Problem& problem,
                   std::vector<Candidate>* considered, MakePlan make_plan) {
  if (refusal) {
    if (considered) considered->push_back({"simt family, " + describe(tile, problem.dtype), 0, refusal});
    return;
  }
  const Plan plan = make_plan();
  consider_plan(best, "simt family", std::get<Tile>(plan.tile), plan.workspace_bytes, plan.estimate_ms, problem.dtype,
                considered);
}
inline Plan served(std::optional<Plan> best) {
  if (best) return std::move(*best);
  throw InvalidArgument(
      "conv_transpose2d: no tile fits this GPU, or the problem needs more blocks than one grid may have");
}

}  // namespace deconv
