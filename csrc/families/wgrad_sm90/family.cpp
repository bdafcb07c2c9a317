// The record of wgrad_sm90.
#include <sstream>

#include "families/igemm_sm90/planner.h"
#include "planner/plan.h"

namespace deconv {
namespace {

std::string describe_copies(const WgradTma& plan, int warpgroups) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << 128 * (warpgroups + 1) << " threads for " << plan.items
       << " items, " << plan.shared_bytes << " bytes of shared memory, " << plan.slots << " stages of "
       << plan.slot_bytes << " bytes, " << plan.planes << " planes of grad_output, " << plan.splits
       << (plan.splits > 1 ? " splits of the pixels" : " split") << (plan.sums ? ", sums added in order" : "");
  return text.str();
}

void plan(Search& search) {
  if (search.problem.direction != Direction::kGradWeight) return;
  const auto consider = [&](const char* kernel, const auto& planner) {
    if (!search.options.allows("wgrad_sm90", kernel)) return;
    std::optional<Plan> plan = planner(search.problem, search.device, search.considered);
    search.outdoes_mma |= plan.has_value();
    search.consider(std::move(plan));
  };
  consider("rs_nchw", plan_wgrad_rs_nchw);
  consider("ss", plan_wgrad_ss);
  consider("rs_nhwc", plan_wgrad_rs_nhwc);
}

}  // namespace

std::string describe_launch(const WgradRsNchwPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << 128 * (plan.tile.warpgroups + 1) << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.stages << " stages of " << plan.stage_bytes << " bytes, " << plan.splits
       << (plan.splits > 1 ? " splits" : " split") << " of the pixels, sums added in order";
  return text.str();
}

std::string describe_launch(const WgradSsPlan& plan) { return describe_copies(plan, plan.tile.warpgroups); }

std::string describe_launch(const WgradRsNhwcPlan& plan) { return describe_copies(plan, plan.tile.warpgroups); }

Family wgrad_sm90_family() { return {"wgrad_sm90", {"ss", "rs_nhwc", "rs_nchw"}, plan}; }

}  // namespace deconv
