#include <algorithm>
#include <sstream>

#include "families/depthwise/planner.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

// Warp instructions for a run of a row and for each of its columns, counted in machine code for compute capability 9.0,
// issued at a share of the rate that has room for waits.
constexpr double kRunCost = 16, kColumnCost = 6, kIssued = 0.6;
constexpr double kMovedOverCopied = 1.15;  // bytes that halos and the ends of rows add
constexpr double kLaunchMs = 4e-3;
constexpr int64_t kLeastWarps = 16, kLeastLoadingWarps = 32;  // of a multiprocessor
constexpr int64_t kMostSegmentRows = 32, kLeastSegmentRows = 4;
constexpr int kMostShared = 44 << 10, kHalfRun = 8;  // bytes
constexpr int64_t kMostParts = 8;

std::string refusal(const Problem& problem) {
  const Axis &h = problem.axis[0], &w = problem.axis[1];
  const bool forward = problem.direction == Direction::kForward;
  if (problem.direction == Direction::kGradWeight || element_size(problem.dtype) > 4)
    return "no such direction or type";
  if (problem.in_channels != problem.groups || problem.out_channels != problem.groups) return "channels a group";
  for (const Axis& axis : problem.axis) {
    if (axis.dilation != 1 || axis.kernel != 2 * axis.stride || axis.stride == 1) return "kernel and stride";
    if (axis.output >= 1 << 16 || axis.input >= 1 << 16) return "extents";
    if (forward && axis.output_padding > axis.padding) return "pixels behind the last block";
  }
  const int64_t size = element_size(problem.dtype), parts = w.stride * size / 16;
  if (w.stride * size % 16 != 0 || (parts & (parts - 1)) != 0 || parts > kMostParts) return "stride";
  if (h.stride * w.stride * 16 > kMostShared) return "weights";
  if (problem.y.stride[3] != 1) return "columns apart";
  // Halves of a run are in the image or outside, and begin at multiples of their bytes.
  for (const int64_t elements : {w.padding, w.output, problem.y.stride[0], problem.y.stride[1], problem.y.stride[2]}) {
    if (elements * size % kHalfRun != 0) return "rows at odd addresses";
  }
  return "";
}

}  // namespace

std::optional<Plan> plan_depthwise_blocks(const Problem& problem, const Device& device) {
  if (!refusal(problem).empty()) return std::nullopt;
  const Axis &h = problem.axis[0], &w = problem.axis[1];
  const bool forward = problem.direction == Direction::kForward;
  DepthwiseBlocksPlan p;
  const int64_t size = element_size(problem.dtype);
  p.parts = static_cast<int>(w.stride * size / 16);
  p.line_blocks = static_cast<int>(w.input + 1);
  p.warp_blocks = 32 / p.parts - (forward ? 0 : 1);
  const int64_t rows = forward ? h.input + 1 : h.input;
  const int64_t wanted = (forward ? kLeastWarps : kLeastLoadingWarps) * device.multiprocessors * p.warp_blocks;
  const int64_t lines = problem.batch * problem.groups * p.line_blocks;
  p.segment_rows = static_cast<int>(std::clamp(rows * lines / wanted, kLeastSegmentRows, kMostSegmentRows));
  p.segments = static_cast<int>(ceil_div(rows, p.segment_rows));
  p.positions = problem.batch * p.segments * p.line_blocks;
  const int64_t warps = ceil_div(p.positions, p.warp_blocks);
  p.channel_blocks = static_cast<int>(ceil_div(warps, kDepthwiseThreads / 32));
  p.blocks = p.channel_blocks * problem.groups;
  if (p.positions > INT32_MAX / 2 || p.blocks > INT32_MAX) return std::nullopt;
  p.shared_bytes = static_cast<int>(h.stride * w.stride * 16);
  p.by_line_blocks = divide_by(p.line_blocks);
  p.by_segments = divide_by(p.segments);
  p.by_channel_blocks = divide_by(p.channel_blocks);
  const double run = kRunCost + kColumnCost * depthwise_run(static_cast<int>(size));
  const auto run_rows = static_cast<double>(warps * problem.groups * (p.segment_rows + (forward ? 0 : 1)) * h.stride);
  const double issue = run_rows * run / (4.0 * device.multiprocessors * kClock * kIssued);
  const double memory = kMovedOverCopied * static_cast<double>(problem.bytes()) / device.bandwidth;
  Plan plan;
  plan.tile = tile_plan(p);
  plan.estimate_ms = 1e3 * std::max(issue, memory) + kLaunchMs;
  return plan;
}

std::string describe(const DepthwiseBlocksPlan& plan, DType) {
  std::ostringstream text;
  text << "output in blocks of the stride, " << plan.parts << (plan.parts == 1 ? " thread" : " threads") << " a block, "
       << plan.segment_rows << " rows each";
  return text.str();
}

}  // namespace deconv
