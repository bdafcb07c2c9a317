// The record of depthwise.
#include <sstream>

#include "families/depthwise/planner.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

std::string refusal(const Problem& problem) {
  if (problem.x.numel() == 0 || problem.y.numel() == 0) return "takes no empty tensors";
  if (problem.in_channels_per_group() != 1 && problem.out_channels_per_group() != 1) {
    return "takes one input or one output channel a group";
  }
  for (const Axis& axis : problem.axis) {
    if (axis.stride > kDepthwiseStrides) return "takes strides up to 32";
    if (axis.output >= 1 << 16 || axis.input >= 1 << 16) return "takes extents below 65536";
  }
  if (problem.in_channels * problem.out_channels_per_group() * problem.batch > INT32_MAX ||
      problem.batch * problem.axis[0].input * problem.axis[1].input > INT32_MAX) {
    return "takes fewer than 2^31 pixels, and pairs of channels, of all images together";
  }
  return "";
}

int64_t workspace_bytes(int splits, const Problem& problem) {
  return splits > 1 ? splits * problem.w.numel() * static_cast<int64_t>(accumulator_size(problem.dtype)) : 0;
}

std::string refusal(const DepthwiseStripsPlan& tile, const Problem& problem) {
  if (workspace_bytes(tile.splits, problem) > kWorkspaceLimit) return "needs more workspace than 64 MiB";
  if (tile.shared_bytes > kDepthwiseSharedBytes) return "keeps weights in 44 KiB of shared memory, which these exceed";
  if (tile.blocks > INT32_MAX) return "needs more blocks than one grid may have";
  return "";
}

void plan(Search& search) {
  const Problem& problem = search.problem;
  std::optional<Plan> best;
  const auto consider = [&](const auto& tile, double ms) {
    consider_plan(best, "depthwise family", tile, workspace_bytes(tile.splits, problem), ms, problem.dtype,
                  search.considered);
  };
  const auto refuse = [&](const std::string& tile, const std::string& reason) {
    if (search.considered) search.considered->push_back({"depthwise family" + tile, 0, reason});
  };
  const std::string reason = refusal(problem);
  if (!reason.empty()) return refuse("", reason);
  const auto [strips, strips_ms] = plan_strips(problem, search.device);
  const std::string of_strips = refusal(strips, problem);
  if (of_strips.empty()) {
    consider(strips, strips_ms);
  } else {
    refuse(", " + describe(strips, problem.dtype), of_strips);
  }
  if (search.options.allows("depthwise", "row_stream")) {
    if (const auto rows = plan_row_stream(problem, search.device)) consider(rows->first, rows->second);
  }
  search.consider(best);
}

template <class DepthwisePlan>
std::string describe_blocks(const DepthwisePlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << plan.threads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.splits
       << (plan.splits > 1 ? " splits of the pixels, added in order" : " split");
  return text.str();
}

}  // namespace

std::string describe(const DepthwiseStripsPlan& plan, DType) {
  std::ostringstream text;
  text << plan.lanes << " lanes of " << plan.vector << (plan.channels_inner ? " channels x " : " phases x ")
       << plan.first_slots;
  if (!plan.weight_gradient) text << 'x' << plan.second_slots << 'x' << plan.channel_slots;
  text << (plan.channels_inner ? " strips of columns" : " strips of rows");
  if (!plan.weight_gradient) text << ", " << plan.rows << " each";
  return text.str();
}

std::string describe(const DepthwiseRowsPlan& plan, DType dtype) {
  std::ostringstream text;
  const int columns = depthwise_rows_columns(static_cast<int>(element_size(dtype)), plan.stride, plan.channels_inner,
                                             plan.read);
  text << "down " << plan.segment_rows << " rows, " << columns << " columns a thread x " << plan.lanes
       << (plan.channels_inner ? " lanes of 4 bytes" : " lanes");
  return text.str();
}

std::string describe_launch(const DepthwiseStripsPlan& plan) { return describe_blocks(plan); }
std::string describe_launch(const DepthwiseRowsPlan& plan) { return describe_blocks(plan); }

Family depthwise_family() { return {"depthwise", {"row_stream"}, plan}; }

}  // namespace deconv
