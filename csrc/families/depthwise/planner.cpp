// Blocks and splits of the depthwise family.
#include "families/depthwise/planner.h"

#include <algorithm>
#include <sstream>

#include "core/correlation.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

constexpr int kSharedBytes = 44 << 10;  // of a block, that four may share a multiprocessor
constexpr int kRowsOfThread = 16, kBlocksPerMultiprocessor = 4, kWeightBlocksPerMultiprocessor = 2;
constexpr int kFirstRounds = 3;  // what a split's beginning costs, in strips of a thread

// Warp instructions, counted in the machine code for compute capability 9.0.
constexpr double kItemCost = 120;  // a thread's pixels: their place, bias, stores
constexpr double kRowCost = 20, kPixelCost = 4;  // a row of taps; one load, with its place and its bounds
// Measured time over counted, beside the time to move all bytes: 1.0 to 2.6 in 18 timings on an H200; 2.7 to 4.1
// without groups, in grad_weight and in grad_input of many channels from one.
constexpr double kMeasuredOverCounted = 1.5, kMeasuredOverCountedAlone = 3.2;

// The taps of one axis: how many a phase or plane has at most, and the pixels between them.
struct TapSpacing {
  int most, step;
};
TapSpacing spacing(const AxisGeometry& axis) {
  const int common = gcd(axis.stride, axis.dilation);
  return {static_cast<int>(ceil_div(axis.kernel, axis.stride / common)), axis.dilation / common};
}

std::string refusal(const Problem& problem) {
  if (problem.x.numel() == 0 || problem.y.numel() == 0) return "takes no empty tensors";
  if (problem.in_channels_per_group() != 1 && problem.out_channels_per_group() != 1) {
    return "takes one input or one output channel a group";
  }
  if (problem.axis[0].stride > kDepthwiseStrides || problem.axis[1].stride > kDepthwiseStrides) {
    return "takes strides up to 32";
  }
  for (const Axis& axis : problem.axis) {
    if (axis.output >= 1 << 16 || axis.input >= 1 << 16) return "takes extents below 65536";
  }
  if (problem.in_channels * problem.out_channels_per_group() * problem.batch > INT32_MAX ||
      problem.batch * problem.axis[0].input * problem.axis[1].input > INT32_MAX) {
    return "takes fewer than 2^31 pixels, and pairs of channels, of all images together";
  }
  return "";
}

std::string refusal(int shared_bytes, int64_t blocks) {
  if (shared_bytes > kSharedBytes) return "keeps a tile in 44 KiB of shared memory, which this one exceeds";
  if (blocks > INT32_MAX) return "needs more blocks than one grid may have";
  return "";
}

// Seconds that warp instructions of so many blocks take to issue; float64 has half of the rate. Two blocks keep a
// multiprocessor busy.
double issue_time(double instructions, int64_t blocks, const Problem& problem, const Device& device) {
  const double busy = std::min<double>(device.multiprocessors, static_cast<double>(std::max<int64_t>(blocks, 1)) / 2);
  return instructions / (4.0 * busy * kClock) * (static_cast<double>(accumulator_size(problem.dtype)) / 4);
}

struct Draft {
  Plan plan;
  std::string refusal;
  std::string tile;
};

// Splits whose sums the workspace holds.
int64_t most_splits(const Problem& problem) {
  const int64_t partial = problem.w.numel() * static_cast<int64_t>(accumulator_size(problem.dtype));
  return kWorkspaceLimit / std::max<int64_t>(1, partial);
}

// Splits of the `units` that each of `blocks` has, where a split's beginning costs as much as some more of them: those
// which end first, of the numbers that just fill some waves.
int64_t splits_of(int64_t units, int64_t blocks, int per_multiprocessor, double beginning, const Problem& problem,
                  const Device& device) {
  constexpr int kMostWaves = 16;
  const int64_t at_once = static_cast<int64_t>(per_multiprocessor) * device.multiprocessors;
  const int64_t most = std::max<int64_t>(1, std::min(most_splits(problem), units));
  int64_t best = 1;
  double least = 0;
  for (int64_t wave = 0; wave < kMostWaves; ++wave) {
    const int64_t splits = std::clamp<int64_t>((ceil_div(blocks, at_once) + wave) * at_once / blocks, 1, most);
    const double cost = static_cast<double>(ceil_div(blocks * splits, at_once)) *
                        (static_cast<double>(ceil_div(units, splits)) + beginning);
    if (wave > 0 && cost >= least) continue;
    least = cost;
    best = splits;
  }
  return best;
}

// Lanes that leave few threads idle; the more, the longer the pieces of memory.
int lanes_of(int64_t inner) {
  const auto busy = [inner](int lanes) {
    return static_cast<double>(kDepthwiseThreads / lanes * lanes) * static_cast<double>(inner) /
           static_cast<double>(round_up(inner, lanes));
  };
  if (inner % 32 == 0) return 32;
  const int most = static_cast<int>(std::min<int64_t>(inner, 128));
  int best = most;
  for (int lanes = most - 1; lanes > 0; --lanes) {
    if (busy(lanes) > 1.05 * busy(best)) best = lanes;
  }
  return best;
}

void set_divisors(DepthwiseStripsPlan& tile) {
  tile.by_lanes = divide_by(tile.lanes);
  tile.by_first_slots = divide_by(tile.first_slots);
  tile.by_second_slots = divide_by(tile.second_slots);
  tile.by_blocks_inner = divide_by(tile.blocks_inner);
  tile.by_blocks_first = divide_by(tile.blocks_first);
  tile.by_blocks_second = divide_by(tile.blocks_second);
  tile.by_block_phases = divide_by(tile.block_phases);
  tile.by_tap_columns = divide_by(tile.tap_columns);
  for (int a = 0; a < 2; ++a) {
    tile.by_chunks[a] = divide_by(tile.chunks[a]);
    tile.by_passes[a] = divide_by(tile.passes[a]);
  }
}

// Axis 0 and 1 as the kernel has them, and what all directions share.
struct StripsAxes {
  AxisGeometry rows, strips;
  TapSpacing row_taps, strip_taps;
};

// Blocks of forward and grad_input; the warp instructions of a thread's strip.
double set_blocks(DepthwiseStripsPlan& tile, const Problem& problem, const Device& device, const StripsAxes& axes) {
  const auto& [rows, strips, row_taps, strip_taps] = axes;
  const bool forward = rows.is_forward, inner = tile.channels_inner;
  const int64_t channels = problem.result().size[1];
  const int64_t sources = forward ? problem.in_channels_per_group() : problem.out_channels_per_group();
  tile.tap_rows = forward ? row_taps.most : rows.kernel;
  tile.tap_columns = forward ? strip_taps.most : strips.kernel;
  const int64_t weights = static_cast<int64_t>(tile.tap_rows) * tile.tap_columns * sources * tile.vector *
                          static_cast<int64_t>(accumulator_size(problem.dtype));
  const int64_t line = channels * strips.phases() / tile.vector;  // threads side by side, of channels innermost
  tile.lanes = inner ? lanes_of(line) : rows.phases();
  while (inner && tile.lanes > 1 && tile.lanes * weights > kSharedBytes) tile.lanes /= 2;
  const int strip = depthwise_strip(tile.vector);
  const int64_t all_rows = rows.phase_size(0), all_strips = ceil_div(strips.phase_size(0), strip);
  const int64_t first = inner ? all_strips : all_rows, second = inner ? all_rows : all_strips;
  const int64_t slots = std::max(1, kDepthwiseThreads / tile.lanes);
  tile.blocks_first = static_cast<int>(ceil_div(first, slots));
  tile.first_slots = static_cast<int>(ceil_div(first, tile.blocks_first));
  tile.second_slots = static_cast<int>(std::min(slots / tile.first_slots, second));
  if (!inner) {
    const int64_t most = std::max<int64_t>(1, kSharedBytes / (tile.lanes * weights));
    tile.channel_slots = static_cast<int>(std::min({slots / (tile.first_slots * tile.second_slots), channels, most}));
  }
  tile.blocks_inner = static_cast<int>(inner ? ceil_div(line, tile.lanes) : ceil_div(channels, tile.channel_slots));
  tile.block_phases = inner ? rows.phases() : strips.phases();
  tile.shared_bytes = static_cast<int>(std::min<int64_t>(tile.lanes * tile.channel_slots * weights, INT32_MAX));
  const int64_t columns = static_cast<int64_t>(tile.blocks_inner) * tile.blocks_first * tile.block_phases *
                          problem.batch;
  const int64_t rounds = ceil_div(second, tile.second_slots);
  const int64_t wanted = ceil_div(static_cast<int64_t>(kBlocksPerMultiprocessor) * device.multiprocessors, columns);
  tile.rows = static_cast<int>(std::clamp<int64_t>(rounds / wanted, 1, kRowsOfThread));
  tile.blocks_second = static_cast<int>(ceil_div(rounds, tile.rows));
  tile.blocks = columns * tile.blocks_second;
  const double sections = strips.planes(), loads = strip * tile.chunks[1] + strip_taps.most;
  const double of_row = kRowCost + loads * (kPixelCost + tile.vector / 2.0) + strip * tile.vector * strip_taps.most;
  return kItemCost + tile.tap_rows * sections * static_cast<double>(sources) * of_row;
}

// Blocks of grad_weight; the warp instructions of a thread's strip.
double set_passes(DepthwiseStripsPlan& tile, const Problem& problem, const Device& device, const StripsAxes& axes) {
  const auto& [rows, strips, row_taps, strip_taps] = axes;
  const bool inner = tile.channels_inner;
  const int64_t pairs = problem.in_channels * problem.out_channels_per_group();
  tile.lanes = inner ? lanes_of(pairs / tile.vector) : rows.stride;
  tile.first_slots = kDepthwiseThreads / tile.lanes;
  // Source phases beyond the image, too: their taps get zeros.
  tile.passes[0] = tile.chunks[0] * (inner ? rows.stride : 1);
  tile.passes[1] = tile.chunks[1] * strips.stride;
  tile.blocks_inner = static_cast<int>(inner ? ceil_div(pairs, static_cast<int64_t>(tile.lanes) * tile.vector) : pairs);
  const int strip = depthwise_strip(tile.vector);
  const int64_t all_strips = ceil_div(strips.result_size, strip);
  tile.units = static_cast<int>(problem.batch * rows.result_size * all_strips);
  tile.by_first_units = divide_by(inner ? all_strips : rows.result_size);
  tile.by_second_units = divide_by(inner ? rows.result_size : all_strips);
  tile.blocks = static_cast<int64_t>(tile.blocks_inner) * tile.passes[0] * tile.passes[1];
  const int64_t rounds = ceil_div(tile.units, tile.first_slots);
  const int64_t splits = splits_of(rounds, tile.blocks, kWeightBlocksPerMultiprocessor, kFirstRounds, problem, device);
  tile.units_per_split = static_cast<int>(std::min<int64_t>(ceil_div(rounds, splits) * tile.first_slots, tile.units));
  tile.splits = static_cast<int>(ceil_div(tile.units, tile.units_per_split));
  tile.blocks *= tile.splits;
  const double loads = strip + tile.chunk[0] * (strip + tile.chunk[1] - 1.0);
  return kItemCost + loads * (kPixelCost + tile.vector / 2.0) + strip * tile.vector * tile.chunk[0] * tile.chunk[1];
}

Draft plan_strips(const Problem& problem, const Device& device, bool channels_inner) {
  Draft draft;
  DepthwiseStripsPlan tile;
  const int first_axis = channels_inner ? 0 : 1;
  const AxisGeometry rows = geometry(problem, first_axis), strips = geometry(problem, 1 - first_axis);
  const StripsAxes axes{rows, strips, spacing(rows), spacing(strips)};
  tile.weight_gradient = problem.direction == Direction::kGradWeight;
  tile.channels_inner = channels_inner;
  const int pack = static_cast<int>(16 / element_size(problem.dtype)),
            most = tile.weight_gradient ? std::min(4, pack) : pack;
  const bool vectors = channels_inner && problem.in_channels == problem.groups &&
                       problem.out_channels == problem.groups && problem.groups % most == 0 &&
                       problem.x.stride[1] == 1 && problem.y.stride[1] == 1;
  tile.vector = vectors ? most : 1;
  const auto set_chunks = [&](int a, const TapSpacing& taps, int chunk) {
    tile.chunk[a] = taps.step == 1 ? std::min(chunk, taps.most) : 1;
    tile.chunks[a] = static_cast<int>(ceil_div(taps.most, tile.chunk[a]));
  };
  set_chunks(0, axes.row_taps, kDepthwiseTapRows);
  set_chunks(1, axes.strip_taps, kDepthwiseTapColumns);
  double work = tile.weight_gradient ? set_passes(tile, problem, device, axes)
                                     : set_blocks(tile, problem, device, axes);
  set_divisors(tile);
  const int64_t threads = tile.weight_gradient
                              ? ceil_div(tile.blocks, tile.splits) * ceil_div(tile.units, tile.first_slots)
                              : tile.blocks * tile.rows;
  work *= static_cast<double>(threads) * kDepthwiseThreads / 32;
  draft.plan.workspace_bytes = tile.splits > 1 ? tile.splits * problem.w.numel() *
                                                     static_cast<int64_t>(accumulator_size(problem.dtype))
                                               : 0;
  if (draft.plan.workspace_bytes > kWorkspaceLimit) draft.refusal = "needs more workspace than 64 MiB";
  if (draft.refusal.empty()) draft.refusal = refusal(tile.shared_bytes, tile.blocks);
  draft.plan.estimate_ms = issue_time(work, tile.blocks, problem, device);
  draft.plan.tile = tile_plan(tile);
  draft.tile = describe(tile, problem.dtype);
  return draft;
}

}  // namespace

std::string describe(const DepthwiseStripsPlan& plan, DType) {
  std::ostringstream text;
  text << plan.lanes << (plan.channels_inner ? " lanes of " : " phases of ") << plan.vector
       << (plan.vector == 1 ? " channel x " : " channels x ") << plan.first_slots;
  if (!plan.weight_gradient) text << 'x' << plan.second_slots << 'x' << plan.channel_slots;
  text << (plan.channels_inner ? " strips of columns" : " strips of rows");
  if (!plan.weight_gradient) text << ", " << plan.rows << " each";
  return text.str();
}

std::optional<Plan> plan_depthwise(const Problem& problem, const Device& device, const PlannerOptions& options,
                                   std::vector<Candidate>* considered) {
  const Tensor4& pixels = problem.direction == Direction::kGradWeight ? problem.x : problem.result();
  const bool channels_innermost = pixels.stride[1] == 1 && pixels.size[1] > 1;
  Draft draft;
  draft.refusal = refusal(problem);
  if (draft.refusal.empty()) draft = plan_strips(problem, device, channels_innermost);
  const bool is_alone = problem.groups == 1 &&
                        (problem.direction == Direction::kGradWeight ||
                         (problem.direction == Direction::kGradInput && problem.in_channels > problem.out_channels));
  const auto moved = static_cast<double>(problem.bytes());
  draft.plan.estimate_ms = 1e3 *
                           ((is_alone ? kMeasuredOverCountedAlone : kMeasuredOverCounted) * draft.plan.estimate_ms +
                            moved / device.bandwidth);
  std::optional<Plan> best = draft.refusal.empty() ? std::optional(draft.plan) : std::nullopt;
  if (considered) {
    considered->push_back({"depthwise family" + (draft.tile.empty() ? "" : ", " + draft.tile), draft.plan.estimate_ms,
                           draft.refusal, best ? std::make_shared<const Plan>(*best) : nullptr});
  }
  if (refusal(problem).empty()) {
    const auto consider = [&](const std::optional<Plan>& plan, auto tile) {
      if (!plan) return;
      tile = *plan->get_if<decltype(tile)>();
      consider_plan(best, "depthwise family", tile, plan->workspace_bytes, plan->estimate_ms, problem.dtype,
                    considered);
    };
    if (options.allows("depthwise", "nchw_upsample"))
      consider(plan_depthwise_blocks(problem, device), DepthwiseBlocksPlan());
    if (options.allows("depthwise", "nhwc_upsample"))
      consider(plan_depthwise_packs(problem, device), DepthwisePacksPlan());
    if (options.allows("depthwise", "row_stream")) consider(plan_depthwise_rows(problem, device), DepthwiseRowsPlan());
  }
  return best;
}

}  // namespace deconv
