#include "plan.h"

#include <cstdio>
#include <sstream>

#include "plan_depthwise.h"
#include "plan_gather.h"

namespace deconv {

AxisGeometry geometry(const Problem& problem, int axis) {
  const Axis& a = problem.axis[axis];
  const bool forward = problem.direction == Direction::kForward;
  AxisGeometry g;
  g.source_size = static_cast<int>(forward ? a.input : a.output);
  g.result_size = static_cast<int>(forward ? a.output : a.input);
  g.kernel = static_cast<int>(a.kernel);
  g.stride = static_cast<int>(a.stride);
  g.padding = static_cast<int>(a.padding);
  g.dilation = static_cast<int>(a.dilation);
  g.is_forward = forward;
  return g;
}

Plan make_plan(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  const std::optional<Plan> depthwise = plan_depthwise(problem, device, considered);
  const Plan gather = problem.direction == Direction::kGradWeight ? plan_gather_weight(problem, device, considered)
                                                                  : plan_gather_conv(problem, device, considered);
  return depthwise && depthwise->estimate_ms < gather.estimate_ms ? *depthwise : gather;
}

namespace {

std::string milliseconds(double ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g ms", ms);
  return text;
}

std::string describe_launch(const GatherConvPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << kGatherThreads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.chunk << " channels and up to " << plan.taps_h << 'x' << plan.taps_w
       << " taps a stage, " << (plan.vector_source ? "16-byte" : "scalar") << " loads, "
       << (plan.vector_result ? "16-byte" : "scalar") << " stores";
  return text.str();
}

std::string describe_launch(const GatherWeightPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << 32 * plan.warps_m * plan.warps_n * plan.warps_tap << " threads, "
       << plan.shared_bytes << " bytes of shared memory, " << plan.splits
       << (plan.splits > 1 ? " splits of the pixels, added in order" : " split");
  return text.str();
}

template <class DepthwisePlan>
std::string describe_launch(const DepthwisePlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << kDepthwiseThreads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.splits
       << (plan.splits > 1 ? " splits of the pixels, added in order" : " split");
  return text.str();
}

const char* family(const GatherConvPlan&) { return "gather"; }
const char* family(const GatherWeightPlan&) { return "gather"; }
const char* family(const DepthwisePlanesPlan&) { return "depthwise"; }
const char* family(const DepthwiseChannelsPlan&) { return "depthwise"; }

}  // namespace

std::string explain(const Problem& problem, const Device& device) {
  std::vector<Candidate> considered;
  const Plan plan = make_plan(problem, device, &considered);
  std::ostringstream text;
  text << problem.describe() << '\n'
       << "  result: " << name(problem.result_layout) << "; " << problem.flops() * 1e-9 << " GFLOP dense, "
       << static_cast<double>(problem.bytes()) * 1e-9 << " GB read and written once\n"
       << "  device: " << device.name << ", " << device.multiprocessors << " multiprocessors\n";
  std::visit(
      [&](const auto& tile) {
        text << "  plan: " << family(tile) << " family, " << describe(tile, problem.dtype) << ", about "
             << milliseconds(plan.estimate_ms) << '\n'
             << "  launch: " << describe_launch(tile) << '\n';
      },
      plan.tile);
  text << "  workspace: " << plan.workspace_bytes << " bytes\n  considered:\n";
  for (const Candidate& candidate : considered) {
    text << "    " << candidate.tile << ": "
         << (candidate.refusal.empty() ? "about " + milliseconds(candidate.estimate_ms)
                                       : "refused, " + candidate.refusal)
         << '\n';
  }
  return text.str();
}

}  // namespace deconv
