// The record of simt.
#include <sstream>

#include "families/simt/planner.h"

namespace deconv {
namespace {

void plan(Search& search) {
  const bool is_weight = search.problem.direction == Direction::kGradWeight;
  search.consider(
      (is_weight ? plan_gather_weight : plan_gather_conv)(search.problem, search.device, search.considered));
}

}  // namespace

std::string describe_launch(const SimtConvPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << kSimtThreads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.chunk << " channels and up to " << plan.taps_h << 'x' << plan.taps_w
       << " taps a stage, " << (plan.vector_source ? "16-byte" : "scalar") << " loads, "
       << (plan.vector_result ? "16-byte" : "scalar") << " stores";
  return text.str();
}

std::string describe_launch(const SimtWgradPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << 32 * plan.warps_m * plan.warps_n * plan.warps_tap << " threads, "
       << plan.shared_bytes << " bytes of shared memory, " << plan.splits
       << (plan.splits > 1 ? " splits of the pixels, added in order" : " split");
  return text.str();
}

Family simt_family() { return {"simt", {}, plan}; }

}  // namespace deconv
