// Segments of lines of the depthwise kernel for layers that enlarge with channels innermost
// (kernels/depthwise/packs.cuh).
#include <algorithm>
#include <sstream>

#include "families/depthwise/planner.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

// Warp instructions, counted in machine code for compute capability 9.0, issued at a share of the rate that has room
// for waits.
constexpr double kStepCost = 12, kElementCost = 8, kBeginCost = 400, kStagedCost = 20, kIssued = 0.6;
constexpr double kMovedOverCopied = 1.3;
constexpr int kMostShared = 44 << 10;
constexpr int64_t kMostSteps = 32, kLeastSteps = 4, kBlocksPerMultiprocessor = 8;

bool serves(const Problem& problem) {
  if (problem.direction != Direction::kForward || element_size(problem.dtype) > 4) return false;
  if (problem.in_channels != problem.groups || problem.out_channels != problem.groups) return false;
  for (const Axis& axis : problem.axis) {
    if (axis.dilation != 1 || axis.kernel != 2 * axis.stride) return false;
  }
  // No rows of blocks of which row i - 1 of the input is behind the image.
  if (problem.axis[0].output_padding > problem.axis[0].padding) return false;
  const int64_t channels = problem.groups, pack = 16 / element_size(problem.dtype);
  for (const Tensor4* tensor : {&problem.x, &problem.y}) {
    if (tensor->stride[1] != 1 || tensor->stride[3] != channels) return false;
  }
  if (problem.axis[1].stride * channels % pack != 0 || problem.axis[1].output * channels % pack != 0) return false;
  const int64_t most = std::max(problem.axis[1].output, problem.axis[1].padding + problem.axis[1].stride) * channels;
  return most < INT32_MAX / 2;
}

}  // namespace

std::optional<Plan> plan_depthwise_packs(const Problem& problem, const Device& device) {
  if (!serves(problem)) return std::nullopt;
  const Axis &h = problem.axis[0], &w = problem.axis[1];
  const int64_t channels = problem.groups, size = element_size(problem.dtype), pack = 16 / size;
  DepthwisePacksPlan p;
  const int64_t block_packs = w.stride * channels / pack, line_packs = w.output * channels / pack;
  const int64_t places = block_packs * h.stride, line_blocks = ceil_div(line_packs, block_packs);
  const int64_t parts = ceil_div(places, kDepthwiseThreads);
  p.block_packs = static_cast<int>(block_packs);
  p.line_packs = static_cast<int>(line_packs);
  p.threads = static_cast<int>(round_up(ceil_div(places, parts), 32));
  const int64_t block_rows = (h.output - 1 + h.padding) / h.stride - h.padding / h.stride + 1;
  const int64_t lines = problem.batch * block_rows;
  // Segments as long as leave enough blocks.
  const int64_t wanted = ceil_div(kBlocksPerMultiprocessor * device.multiprocessors, lines * parts);
  const int64_t most = std::min<int64_t>(kMostSteps, kMostShared / (channels * 8) - 2);
  if (most < std::min(kLeastSteps, line_blocks)) return std::nullopt;
  const int64_t steps = std::clamp(ceil_div(line_blocks, wanted), std::min(kLeastSteps, most), most);
  const int64_t segments = ceil_div(line_blocks, steps);
  p.steps = static_cast<int>(ceil_div(line_blocks, segments));
  p.shared_bytes = static_cast<int>((p.steps + 2) * channels * 8);
  p.blocks = parts * segments * lines;
  if (p.blocks > INT32_MAX) return std::nullopt;
  p.by_parts = divide_by(parts);
  p.by_segments = divide_by(segments);
  p.by_block_rows = divide_by(block_rows);
  p.by_block_packs = divide_by(block_packs);
  p.by_channels = divide_by(channels);
  const auto of_thread = kBeginCost + p.steps * (kStepCost + kElementCost * static_cast<double>(pack)) +
                         kStagedCost * static_cast<double>(p.shared_bytes) / 8 / p.threads;
  const double warps = static_cast<double>(p.blocks) * p.threads / 32;
  const double busy = std::min(1.0, static_cast<double>(p.blocks) / device.multiprocessors);
  const double issue = warps * of_thread / (4.0 * device.multiprocessors * busy * kClock * kIssued);
  const double memory = kMovedOverCopied * static_cast<double>(problem.bytes()) / device.bandwidth;
  Plan plan;
  plan.tile = tile_plan(p);
  plan.estimate_ms = 1e3 * std::max(issue, memory);  // without a launch, as the family's other estimates
  return plan;
}

std::string describe(const DepthwisePacksPlan& plan, DType) {
  std::ostringstream text;
  text << "output in blocks of the stride, " << plan.block_packs << " packs of columns and channels a row of them, "
       << plan.steps << " blocks each";
  return text.str();
}

}  // namespace deconv
