// Launcher of group_merge: the inner plan with merged groups, then the diagonal.
// instances: launch_group_merge(GroupMergePlan)
#include "families/launch.h"
#include "launch/kernel_launch.cuh"
#include "lowerings/group_merge/diagonal.cuh"
#include "lowerings/group_merge/group_merge.h"
#include "lowerings/group_merge/plan.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

template <class Bits>
cudaError_t launch_diagonal(const Problem& problem, int64_t merge, const void* source, void* result,
                            cudaStream_t stream) {
  const int64_t taps = problem.w.size[2] * problem.w.size[3];
  const bool channels_inner = problem.result_layout == Layout::kChannelsLast;
  group_merge::DiagonalParams<Bits> p;
  p.source = static_cast<const Bits*>(source);
  p.result = static_cast<Bits*>(result);
  p.run = divide_by(problem.w.size[1] * (channels_inner ? 1 : taps));
  p.group_runs = divide_by(problem.in_channels_per_group() * (channels_inner ? taps : 1));
  p.merge = divide_by(merge);
  p.elements = static_cast<int>(problem.w.numel());
  return launch_kernel(group_merge::diagonal_kernel<Bits>, ceil_div(p.elements, group_merge::kDiagonalThreads),
                       group_merge::kDiagonalThreads, 0, stream, p, Start::kEarly);
}

}  // namespace

cudaError_t launch_group_merge(const Problem& problem, const GroupMergePlan& plan, const Operands& operands,
                               cudaStream_t stream) {
  Operands inner = operands;
  inner.result = operands.workspace;
  inner.workspace = static_cast<unsigned char*>(operands.workspace) + plan.inner_at;
  const cudaError_t error = launch(merged_problem(problem, plan.merge), *plan.inner, inner, stream);
  if (error != cudaSuccess) return error;
  return element_size(problem.dtype) == 2
             ? launch_diagonal<uint16_t>(problem, plan.merge, inner.result, operands.result, stream)
             : launch_diagonal<uint32_t>(problem, plan.merge, inner.result, operands.result, stream);
}

}  // namespace deconv
