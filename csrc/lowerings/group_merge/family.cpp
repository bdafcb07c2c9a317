// The record of group_merge.
#include <limits>

#include "lowerings/group_merge/planner.h"

namespace deconv {
namespace {

void plan(Search& search) {
  if (search.problem.direction != Direction::kGradWeight) return;
  const double best_ms = search.best ? search.best->estimate_ms : std::numeric_limits<double>::infinity();
  search.consider(plan_merged(search.problem, search.device, search.options, best_ms, search.considered));
}

}  // namespace

std::string describe_launch(const GroupMergePlan& plan) {
  return plan.inner->tile->launch_description() + "; then each group's own weights by a kernel of its own";
}

Family group_merge_family() { return {"group_merge", {}, plan}; }

}  // namespace deconv
