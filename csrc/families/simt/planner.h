// Planners of simt, and what they share.
#pragma once

#include "families/simt/plan.h"
#include "planner/cost_model.h"
#include "planner/plan.h"

namespace deconv {

Plan plan_gather_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
Plan plan_gather_weight(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
std::string describe(const SimtConvPlan& plan, DType dtype);
std::string describe_launch(const SimtConvPlan& plan);
std::string describe(const SimtWgradPlan& plan, DType dtype);
std::string describe_launch(const SimtWgradPlan& plan);

// Shared memory of a block if two share a multiprocessor.
inline int simt_shared_bytes(const Device& device) { return device.shared_bytes_per_block / 2 - kReservedShared; }

inline constexpr const char* kTooManyBlocks = "needs more blocks than one grid may have";

// Adds a tile to the candidates, and keeps it if it is the best so far. refusal: null if it can run.
template <class Tile>
void consider_tile(std::optional<Plan>& best, const Tile& tile, int64_t workspace_bytes, double ms, const char* refusal,
                   DType dtype, std::vector<Candidate>* considered) {
  if (!refusal) {
    consider_plan(best, "simt family", tile, workspace_bytes, ms, dtype, considered);
  } else if (considered) {
    considered->push_back({"simt family, " + describe(tile, dtype), 0, refusal});
  }
}

inline Plan served(const std::optional<Plan>& best) {
  if (best) return *best;
  throw InvalidArgument(
      "conv_transpose2d: no tile fits this GPU, or the problem needs more blocks than one grid may have");
}

}  // namespace deconv
