#include "lowerings/group_merge/planner.h"

#include "lowerings/group_merge/group_merge.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

constexpr double kMovedOverCopied = 1.2;  // memory time of any family over that of a copy, at best

// ms to extract the diagonal blocks; fitted to timings on an H200.
double diagonal_ms(int64_t result_bytes) {
  constexpr double kLaunchMs = 1.5e-3, kMsPerByte = 1e-9;
  return kLaunchMs + result_bytes * kMsPerByte;
}

}  // namespace

std::optional<Plan> plan_merged(const Problem& problem, const Device& device, const PlannerOptions& options,
                                double best_ms, std::vector<Candidate>* considered) {
  std::string why = merged_refusal(problem);
  if (why.empty() && !device.has_wgmma && !device.has_mma) why = "needs tensor cores";
  const int64_t bytes = problem.w.numel() * element_size(problem.dtype);
  const double least_ms = 1e3 * kMovedOverCopied * problem.bytes() / device.bandwidth + diagonal_ms(bytes);
  if (why.empty() && best_ms < least_ms) why = "another family takes less than its operands' way through memory";
  if (!why.empty()) return refuse(considered, "group_merge family", why);
  GroupMergePlan plan;
  plan.merge = merged_groups(problem);
  plan.inner = std::make_shared<const Plan>(
      make_plan(merged_problem(problem, plan.merge), device, options.excluding("group_merge")));
  plan.inner_at = round_up(bytes * plan.merge, kWorkspaceRoom);
  std::optional<Plan> best;
  consider_plan(best, "group_merge family", plan, plan.inner_at + plan.inner->workspace_bytes,
                plan.inner->estimate_ms + diagonal_ms(bytes), problem.dtype, considered);
  return best;
}

std::string describe(const GroupMergePlan& plan, DType dtype) {
  return std::to_string(plan.merge) + " groups together, " + describe(*plan.inner, dtype);
}

}  // namespace deconv
