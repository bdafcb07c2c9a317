// Blocks and splits of the depthwise family (kernels/depthwise.cuh).
#include "plan_depthwise.h"

#include <sstream>

#include "plan_gather.h"

namespace deconv {
namespace {

// Warp instructions to add 32 taps, a load and its bounds included; estimated.
constexpr double kTapCost = 12;
// And those around one result pixel.
constexpr double kPixelCost = 60;
constexpr int kWeightBytes = 48 << 10;
constexpr int kBlocksPerMultiprocessor = 16;

const char* refusal(const Problem& problem, const DepthwisePlan& plan) {
  if (problem.in_channels_per_group() != 1 || problem.out_channels_per_group() != 1) {
    return "takes one input and one output channel a group";
  }
  if (problem.axis[0].stride > kDepthwiseStrides || problem.axis[1].stride > kDepthwiseStrides) {
    return "takes strides up to 64";
  }
  if (problem.axis[0].output >= 1 << 16 || problem.axis[1].output >= 1 << 16) return "takes extents below 65536";
  if (plan.shared_bytes > kWeightBytes) return "keeps a block's weights in 48 KiB of shared memory, which these exceed";
  if (plan.blocks > INT32_MAX) return "needs more blocks than one grid may have";
  return "";
}

void choose_blocks(DepthwisePlan& plan, const Problem& problem) {
  const Tensor4& inner = problem.direction == Direction::kGradWeight ? problem.x : problem.result();
  const int64_t width = inner.size[3], height = inner.size[2];
  plan.channels_innermost = inner.stride[1] == 1 && problem.in_channels > 1;
  const int64_t extent = plan.channels_innermost ? problem.in_channels : width;
  plan.columns = std::clamp(power_of_two_at_least(extent), 8, plan.channels_innermost ? 64 : 128);
  plan.blocks_inner = static_cast<int>(ceil_div(extent, plan.columns));
  const int64_t rows = kDepthwiseThreads / plan.columns;
  const int64_t outer = plan.channels_innermost ? height * width : height;
  plan.blocks_outer = static_cast<int>(ceil_div(outer, rows * kDepthwisePixels));
  plan.outer = problem.batch * outer;
}

}  // namespace

std::string describe(const DepthwisePlan& plan, DType) {
  std::ostringstream text;
  text << plan.columns << (plan.channels_innermost ? " channels x " : " columns x ") << kDepthwiseThreads / plan.columns
       << (plan.channels_innermost ? " pixels" : " rows") << " of threads";
  return text.str();
}

std::optional<Plan> plan_depthwise(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  Plan plan;
  DepthwisePlan tile;
  tile.weight_gradient = problem.direction == Direction::kGradWeight;
  choose_blocks(tile, problem);
  const int64_t accumulator = static_cast<int64_t>(accumulator_size(problem.dtype));
  const int64_t taps = problem.axis[0].kernel * problem.axis[1].kernel;
  const double pixels = static_cast<double>(problem.result().numel());
  double work = 0;  // warp instructions
  if (tile.weight_gradient) {
    tile.tap_passes = static_cast<int>(ceil_div(taps, kDepthwiseTaps));
    tile.blocks = static_cast<int64_t>(tile.tap_passes) *
                  (tile.channels_innermost ? tile.blocks_inner : problem.in_channels);
    const int64_t partial = std::max<int64_t>(1, problem.w.numel() * accumulator);
    const int64_t wanted = ceil_div(kBlocksPerMultiprocessor * device.multiprocessors, tile.blocks);
    const int64_t rows = kDepthwiseThreads / tile.columns;
    const int64_t most = std::min({wanted, kWorkspaceLimit / partial, ceil_div(tile.outer, rows)});
    tile.outer_per_split = std::max<int64_t>(1, ceil_div(tile.outer, std::max<int64_t>(1, most)));
    tile.splits = static_cast<int>(std::max<int64_t>(1, ceil_div(tile.outer, tile.outer_per_split)));
    tile.blocks *= tile.splits;
    plan.workspace_bytes = tile.splits > 1 ? tile.splits * partial : 0;
    work = static_cast<double>(problem.x.numel()) * tile.tap_passes * kDepthwiseTaps * kTapCost / 32;
  } else {
    tile.shared_bytes = static_cast<int>(
        std::min<int64_t>(INT32_MAX, round_up(taps * (tile.channels_innermost ? tile.columns : 1) * accumulator, 16)));
    tile.blocks = static_cast<int64_t>(tile.blocks_inner) * tile.blocks_outer * problem.batch *
                  (tile.channels_innermost ? 1 : problem.in_channels);
    const double phases = problem.direction == Direction::kForward
                              ? static_cast<double>(problem.axis[0].stride * problem.axis[1].stride)
                              : 1;
    work = pixels / 32 * (kPixelCost + static_cast<double>(taps) / phases * kTapCost);
  }
  const double issue = work / (4.0 * device.multiprocessors * kClock) * (static_cast<double>(accumulator) / 4);
  plan.estimate_ms = 1e3 * std::max(issue, static_cast<double>(problem.bytes()) / device.bandwidth);
  plan.tile = tile;
  const Candidate candidate{"depthwise family, " + describe(tile, problem.dtype), plan.estimate_ms,
                            refusal(problem, tile)};
  if (considered) considered->push_back(candidate);
  return candidate.refusal.empty() ? std::optional(plan) : std::nullopt;
}

}  // namespace deconv
