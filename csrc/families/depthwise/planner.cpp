// Tiles and splits of the depthwise family (kernels/depthwise/planes.cuh, kernels/depthwise/channels.cuh).
#include "families/depthwise/planner.h"

#include <algorithm>
#include <sstream>

#include "core/correlation.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

constexpr int kSharedBytes = 44 << 10;  // of a block, that four may share a multiprocessor
constexpr int kTileColumns = 256;       // at most; beyond, rows are cut
constexpr int kRowsOfThread = 16;       // channels innermost
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kBlocksInner = 4;  // the same with channels innermost, where two fit
// Blocks of grad_weight that a multiprocessor's registers suffice for, and what a split's beginning costs.
constexpr int blocks_planes_weight(int accumulator) { return accumulator == 8 ? 2 : 3; }
constexpr int kBlocksChannelsWeight = 2;
constexpr double kFirstTile = 0.8, kFirstLines = 3;

// Warp instructions, counted in the machine code for compute capability 9.0.
constexpr double kStagedCost = 5;     // one source pixel into shared memory
constexpr double kItemCost = 120;     // a thread's pixels: their place, bias, stores
constexpr double kTapCost = 1.5;      // one multiplication with its share of the loads
constexpr double kColumnTapCost = 3;  // where each column finds its own taps
constexpr double kPixelCost = 4;      // one load, with its place and its bounds; channels innermost
// Measured time over counted, beside the time to move all bytes: 1.0 to 2.6 in 18 timings on an H200, 5 in grad_input
// with taps of 16x16; 2.7 to 4.1 without groups, in grad_weight and in grad_input of many channels from one.
constexpr double kMeasuredOverCounted = 1.5, kMeasuredOverCountedAlone = 3.2;

// The taps of one axis: how many a phase or plane has at most, and the pixels between them.
struct TapSpacing {
  int most, step;
};
TapSpacing spacing(const AxisGeometry& axis) {
  const int common = gcd(axis.stride, axis.dilation);
  return {static_cast<int>(ceil_div(axis.kernel, axis.stride / common)), axis.dilation / common};
}

// `extent` in equal parts of at most `most`, each a multiple of `unit`.
int part_of(int64_t extent, int64_t most, int64_t unit) {
  const int64_t parts = ceil_div(extent, most);
  return static_cast<int>(round_up(ceil_div(extent, parts), unit));
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

// Bytes that kernels with the width innermost move: whole sectors, of columns apart from each other. Not counted with
// groups: the gather family, their other one in float64, moves as much and does not count it.
double moved_by_planes(const Problem& problem) {
  if (problem.groups > 1) return static_cast<double>(problem.bytes());
  const int64_t element = element_size(problem.dtype);
  int64_t bytes = 0;
  for (const Tensor4* tensor : {&problem.x, &problem.w, &problem.y}) {
    const bool is_one_column = tensor->size[3] == 1;
    bytes += tensor->numel() * (is_one_column ? element : std::min<int64_t>(kSectorBytes, element * tensor->stride[3]));
  }
  return static_cast<double>(bytes);
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

int64_t workspace_of(int splits, const Problem& problem) {
  return splits > 1 ? splits * problem.w.numel() * static_cast<int64_t>(accumulator_size(problem.dtype)) : 0;
}

DepthwiseStage stage_of(const DepthwisePlanesPlan& tile, int pack) {
  DepthwiseStage stage;
  stage.packs = (tile.span + pack - 2) / pack + 1;
  const auto arrange = [&](int lanes) {  // the packs that the busiest thread moves
    const int lines = kDepthwiseThreads / lanes;
    stage.image_lines = std::min(lines, tile.images);
    const int row_lines = std::min(lines / stage.image_lines, tile.source_rows);
    stage.by_lanes = divide_by(lanes);
    stage.by_row_lines = divide_by(row_lines);
    return ceil_div(stage.packs, lanes) * ceil_div(tile.images, stage.image_lines) *
           ceil_div(tile.source_rows, row_lines);
  };
  int best = std::min(stage.packs, kDepthwiseThreads);
  int64_t least = arrange(best);
  for (int packs = 2; packs <= 4; ++packs) {
    const int lanes = static_cast<int>(ceil_div(stage.packs, packs));
    const int64_t most = lanes <= kDepthwiseThreads ? arrange(lanes) : INT64_MAX;
    if (most < 3 * least / 4) best = lanes, least = most;
  }
  arrange(best);
  return stage;
}

void set_divisors(DepthwisePlanesPlan& tile, int pack) {
  const int rows_of_thread = depthwise_rows(tile.phases);
  tile.stage[0] = stage_of(tile, 1);
  tile.stage[1] = stage_of(tile, pack);
  const int strips = tile.columns / kDepthwiseColumns, groups = tile.rows / rows_of_thread;
  tile.image_items = tile.row_phases * groups * strips;
  tile.by_strips = divide_by(strips);
  tile.by_groups = divide_by(groups);
  tile.by_row_phases = divide_by(tile.row_phases);
  tile.by_tiles_w = divide_by(tile.tiles_w);
  tile.by_tiles_h = divide_by(tile.tiles_h);
  tile.by_tiles_n = divide_by(tile.tiles_n);
  tile.by_chunks_h = divide_by(tile.chunks_h);
  tile.by_chunks_w = divide_by(tile.chunks_w);
  tile.by_passes_h = divide_by(tile.passes_h);
  tile.by_passes_w = divide_by(tile.passes_w);
}

Draft plan_planes(const Problem& problem, const Device& device) {
  Draft draft;
  DepthwisePlanesPlan tile;
  const AxisGeometry h = geometry(problem, 0), w = geometry(problem, 1);
  const TapSpacing taps_h = spacing(h), taps_w = spacing(w);
  const int accumulator = static_cast<int>(accumulator_size(problem.dtype));
  const bool forward = h.is_forward;
  const int64_t taps = static_cast<int64_t>(h.kernel) * w.kernel;
  const int64_t pairs = problem.in_channels * problem.out_channels_per_group();
  const int64_t channels = problem.result().size[1];
  tile.weight_gradient = problem.direction == Direction::kGradWeight;
  tile.phases = w.result_step() <= 2 ? w.result_step() : kDepthwiseColumns;
  tile.chunk_h = taps_h.step == 1 ? std::min(kDepthwiseTapRows, taps_h.most) : 1;
  tile.chunk_w = taps_w.step == 1 ? std::min(kDepthwiseTapColumns, taps_w.most) : 1;
  tile.chunks_h = static_cast<int>(ceil_div(taps_h.most, tile.chunk_h));
  tile.chunks_w = static_cast<int>(ceil_div(taps_w.most, tile.chunk_w));
  tile.row_phases = h.phases();
  const int rows_of_thread = depthwise_rows(tile.phases);
  int threads = kDepthwiseThreads, most_columns = kTileColumns;
  if (tile.weight_gradient) {
    const int groups = w.stride * tile.chunks_w;  // planes beyond the image, too: their taps get zeros
    tile.group_warps = std::min(kDepthwiseThreads / 32, power_of_two_at_least(groups));
    tile.passes_h = h.stride * tile.chunks_h;
    tile.passes_w = static_cast<int>(ceil_div(groups, tile.group_warps));
    tile.sections = std::min(w.stride, (tile.group_warps + tile.chunks_w - 2) / tile.chunks_w + 1);
    threads /= tile.group_warps;
    most_columns = std::min(most_columns, threads * kDepthwiseColumns);
  } else {
    tile.sections = !forward ? w.planes() : tile.phases == kDepthwiseColumns ? 1 : tile.phases;
  }

  // As many pixels as the threads take at once, fewer where the source tile would not fit.
  const int64_t rows_q = h.phase_size(0), images = tile.weight_gradient ? problem.batch : channels;
  tile.columns = part_of(w.result_size, most_columns, kDepthwiseColumns);
  // A second pixel group a thread, where enough blocks remain: what a thread works out once serves both.
  const bool in_passes = (forward ? problem.in_channels_per_group() : problem.out_channels_per_group() * h.planes()) >
                         1;
  const double all_items = static_cast<double>(problem.result().numel()) / (rows_of_thread * kDepthwiseColumns);
  if (!tile.weight_gradient && !in_passes &&
      all_items > 2.0 * kDepthwiseThreads * kBlocksPerMultiprocessor * device.multiprocessors) {
    threads *= 2;
  }
  const int64_t row_items = static_cast<int64_t>(tile.columns / kDepthwiseColumns) * tile.row_phases;
  tile.rows = part_of(rows_q, std::max<int64_t>(1, threads / row_items) * rows_of_thread, rows_of_thread);
  if (tile.rows >= rows_q) {
    const int64_t image_items = row_items * (tile.rows / rows_of_thread);
    tile.images = static_cast<int>(
        std::clamp<int64_t>(threads / image_items, 1, std::min<int64_t>(kDepthwiseImages, images)));
  }
  const int lowest = floor_div(h.padding - (h.kernel - 1) * h.dilation, h.stride);
  const int highest = floor_div(h.stride - 1 + h.padding, h.stride);
  const int halo_h = forward ? highest - lowest
                             : ((tile.weight_gradient ? tile.chunk_h : taps_h.most) - 1) * taps_h.step;
  const auto lay_out = [&] {
    tile.source_rows = tile.rows + halo_h;
    tile.pitch = tile.phases == kDepthwiseColumns
                     ? (tile.columns - 1 + (w.kernel - 1) * w.dilation) / w.stride + 3  // two roundings
                     : static_cast<int>(round_up(tile.columns / tile.phases + (taps_w.most - 1) * taps_w.step, 4));
    tile.row_pitch = static_cast<int>(round_up(tile.sections * tile.pitch + 1, 4));
    const int64_t weights = tile.weight_gradient ? 0 : round_up(tile.images * taps * accumulator, 16);
    const int64_t pixels = static_cast<int64_t>(tile.images) * tile.source_rows * tile.row_pitch;
    tile.tile_at = static_cast<int>(std::min<int64_t>(weights, INT32_MAX));
    tile.shared_bytes = static_cast<int>(std::min<int64_t>(weights + pixels * accumulator, INT32_MAX));
  };
  for (lay_out(); tile.shared_bytes > kSharedBytes; lay_out()) {
    if (tile.images > 1) {
      tile.images = (tile.images + 1) / 2;
    } else if (tile.rows > rows_of_thread) {
      tile.rows = part_of(rows_q, tile.rows / 2, rows_of_thread);
    } else if (tile.columns > kDepthwiseColumns) {
      tile.columns = part_of(w.result_size, tile.columns / 2, kDepthwiseColumns);
    } else {
      break;
    }
  }
  tile.tiles_w = static_cast<int>(ceil_div(w.result_size, tile.columns));
  tile.tiles_h = static_cast<int>(ceil_div(rows_q, tile.rows));
  tile.tiles_n = static_cast<int>(ceil_div(images, tile.images));
  tile.tiles = static_cast<int64_t>(tile.tiles_w) * tile.tiles_h * tile.tiles_n;

  tile.span = forward ? (tile.columns - 1 + (w.kernel - 1) * w.dilation) / w.stride + 3
                      : (tile.columns - 1) * w.stride + (w.kernel - 1) * w.dilation + 1;
  set_divisors(tile, static_cast<int>(std::min<int64_t>(kDepthwiseColumns, 16 / element_size(problem.dtype))));
  const int items_of_tile = tile.images * tile.image_items;

  const double staged = static_cast<double>(tile.shared_bytes - tile.tile_at) / accumulator / 32 * kStagedCost;
  const double items = static_cast<double>(round_up(items_of_tile, 32)) / 32;
  double work = 0;
  if (tile.weight_gradient) {
    tile.blocks = pairs * tile.passes_h * tile.passes_w;
    const int64_t splits = splits_of(tile.tiles, std::max<int64_t>(1, tile.blocks), blocks_planes_weight(accumulator),
                                     kFirstTile, problem, device);
    tile.tiles_per_split = std::max<int64_t>(1, ceil_div(tile.tiles, splits));
    tile.splits = static_cast<int>(std::max<int64_t>(1, ceil_div(tile.tiles, tile.tiles_per_split)));
    const double products = kDepthwiseColumns * rows_of_thread * tile.chunk_h * tile.chunk_w;
    work = static_cast<double>(tile.blocks * tile.tiles) *
           (staged + items * tile.group_warps * (kItemCost + products * kTapCost));
    tile.blocks *= tile.splits;
    draft.plan.workspace_bytes = workspace_of(tile.splits, problem);
  } else {
    tile.blocks = tile.tiles * problem.batch;
    const double sources = static_cast<double>(forward ? problem.in_channels_per_group()
                                                       : problem.out_channels_per_group());
    const double planes = h.planes();
    const double tap_work = forward ? taps_h.most * taps_w.most : static_cast<double>(taps);
    const double cost = tile.phases == kDepthwiseColumns ? kColumnTapCost : kTapCost;
    work = static_cast<double>(tile.blocks) *
           (staged * planes * sources +
            items * (kItemCost + kDepthwiseColumns * rows_of_thread * tap_work * sources * cost));
  }
  draft.refusal = refusal(tile.shared_bytes, tile.blocks);
  if (tile.tiles > INT32_MAX) draft.refusal = "takes fewer than 2^31 tiles";
  draft.plan.estimate_ms = issue_time(work, tile.blocks, problem, device);
  draft.plan.tile = tile_plan(tile);
  draft.tile = describe(tile, problem.dtype);
  return draft;
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

void set_divisors(DepthwiseChannelsPlan& tile, const Problem& problem, int64_t strips) {
  tile.by_lanes = divide_by(tile.lanes);
  tile.by_slots_w = divide_by(tile.slots_w);
  tile.by_blocks_inner = divide_by(tile.blocks_inner);
  tile.by_blocks_w = divide_by(tile.blocks_w);
  tile.by_blocks_h = divide_by(tile.blocks_h);
  tile.by_row_phases = divide_by(tile.row_phases);
  tile.by_tap_columns = divide_by(tile.tap_columns);
  tile.by_strips = divide_by(strips);
  tile.by_height = divide_by(problem.axis[0].input);
  tile.by_chunks_h = divide_by(tile.chunks_h);
  tile.by_chunks_w = divide_by(tile.chunks_w);
  tile.by_passes_h = divide_by(tile.passes_h);
  tile.by_passes_w = divide_by(tile.passes_w);
}

// Lines that a thread of grad_weight takes one after the other, of those of a split: few runs read little twice, enough
// of them give every slot something to do.
int rows_of_run(int64_t lines, int64_t strips, int slots, int tap_rows) {
  constexpr int kRunCost = 2;  // a run's beginning, in rows
  const int64_t most = std::max<int64_t>(16, 2 * ceil_div(slots, strips));
  int best = 1;
  int64_t least = 0;
  for (int64_t runs = 1; runs <= std::min(lines, most); ++runs) {
    const int64_t rows = ceil_div(lines, runs);
    const int64_t cost = ceil_div(ceil_div(lines, rows) * strips, slots) * (rows + tap_rows - 1 + kRunCost);
    if (least > 0 && cost >= least) continue;
    least = cost;
    best = static_cast<int>(rows);
  }
  return best;
}

Draft plan_channels(const Problem& problem, const Device& device) {
  Draft draft;
  DepthwiseChannelsPlan tile;
  const AxisGeometry h = geometry(problem, 0), w = geometry(problem, 1);
  const TapSpacing taps_h = spacing(h), taps_w = spacing(w);
  const int accumulator = static_cast<int>(accumulator_size(problem.dtype));
  const int pack = static_cast<int>(16 / element_size(problem.dtype));
  const bool forward = h.is_forward;
  tile.weight_gradient = problem.direction == Direction::kGradWeight;
  const int64_t pairs = problem.in_channels * problem.out_channels_per_group();
  const int64_t channels = tile.weight_gradient ? pairs : problem.result().size[1];
  const int most = tile.weight_gradient ? std::min(4, pack) : pack;
  const bool vectors = problem.in_channels == problem.groups && problem.out_channels == problem.groups &&
                       channels % most == 0 && problem.x.stride[1] == 1 && problem.y.stride[1] == 1;
  tile.vector = vectors ? most : 1;
  tile.chunk_h = taps_h.step == 1 ? std::min(kDepthwiseTapRows, taps_h.most) : 1;
  tile.chunk_w = taps_w.step == 1 ? std::min(kDepthwiseTapColumnsInner, taps_w.most) : 1;
  tile.chunks_h = static_cast<int>(ceil_div(taps_h.most, tile.chunk_h));
  tile.chunks_w = static_cast<int>(ceil_div(taps_w.most, tile.chunk_w));
  tile.tap_rows = forward ? taps_h.most : h.kernel;
  tile.tap_columns = forward ? taps_w.most : w.kernel;
  const int64_t sources = forward ? problem.in_channels_per_group() : problem.out_channels_per_group();
  const int64_t inner = channels * w.phases() / tile.vector;  // one phase for the gradients
  const int64_t weights = tile.weight_gradient ? 0
                                               : static_cast<int64_t>(tile.tap_rows) * tile.tap_columns * sources *
                                                     tile.vector * accumulator;
  tile.lanes = lanes_of(inner);
  while (tile.lanes > 1 && tile.lanes * weights > kSharedBytes) tile.lanes /= 2;
  tile.shared_bytes = static_cast<int>(std::min<int64_t>(tile.lanes * weights, INT32_MAX));
  tile.blocks_inner = static_cast<int>(ceil_div(inner, tile.lanes));
  const int slots = kDepthwiseThreads / tile.lanes, strip = depthwise_strip(tile.vector);
  const int64_t strips = ceil_div(w.phase_size(0), strip);
  double work = 0;  // of one strip
  int64_t threads = tile.blocks_inner;
  if (tile.weight_gradient) {
    tile.slots_w = slots;
    tile.passes_h = h.stride * tile.chunks_h;  // planes beyond the image, too: their taps get zeros
    tile.passes_w = w.stride * tile.chunks_w;
    tile.blocks = static_cast<int64_t>(tile.blocks_inner) * tile.passes_h * tile.passes_w;
    const int64_t lines = problem.batch * h.result_size;
    // The ends of runs of lines are read twice.
    const int64_t splits = splits_of(lines, std::max<int64_t>(1, tile.blocks), kBlocksChannelsWeight,
                                     kFirstLines + tile.chunk_h, problem, device);
    tile.lines_per_split = std::max<int64_t>(1, ceil_div(lines, splits));
    tile.splits = static_cast<int>(std::max<int64_t>(1, ceil_div(lines, tile.lines_per_split)));
    tile.blocks *= tile.splits;
    threads *= lines * strips * tile.passes_h * tile.passes_w;
    tile.rows = rows_of_run(tile.lines_per_split, strips, slots, tile.chunk_h);
    const double again = static_cast<double>(tile.rows + tile.chunk_h - 1) / tile.rows;
    const double loads = strip + again * (strip + tile.chunk_w - 1);
    work = kItemCost + loads * (kPixelCost + tile.vector / 2.0) + strip * tile.vector * tile.chunk_h * tile.chunk_w;
    draft.plan.workspace_bytes = workspace_of(tile.splits, problem);
    if (draft.plan.workspace_bytes > kWorkspaceLimit) draft.refusal = "needs more workspace than 64 MiB";
  } else {
    const int64_t rows_q = h.phase_size(0);
    tile.row_phases = h.phases();
    tile.slots_w = static_cast<int>(std::min<int64_t>(slots, strips));
    tile.slots_h = static_cast<int>(std::min<int64_t>(slots / tile.slots_w, rows_q));
    tile.blocks_w = static_cast<int>(ceil_div(strips, tile.slots_w));
    const int64_t columns = static_cast<int64_t>(tile.blocks_inner) * tile.blocks_w * tile.row_phases * problem.batch;
    const int64_t row_slots = ceil_div(rows_q, tile.slots_h);
    const int64_t wanted = ceil_div(static_cast<int64_t>(kBlocksInner) * device.multiprocessors, columns);
    tile.rows = static_cast<int>(std::clamp<int64_t>(row_slots / wanted, 1, kRowsOfThread));
    tile.blocks_h = static_cast<int>(ceil_div(row_slots, tile.rows));
    tile.blocks = columns * tile.blocks_h;
    threads *= strips * rows_q * tile.row_phases * problem.batch;
    const double sections = forward ? 1 : w.planes();
    const double rows = forward ? taps_h.most : h.kernel;
    const double loads = strip * tile.chunks_w + taps_w.most;
    work = kItemCost + rows * sections * static_cast<double>(sources) *
                           (20 + loads * (kPixelCost + tile.vector / 2.0) + strip * tile.vector * taps_w.most);
  }
  set_divisors(tile, problem, strips);
  work *= static_cast<double>(threads) * kDepthwiseThreads / 32 / slots;
  if (draft.refusal.empty()) draft.refusal = refusal(tile.shared_bytes, tile.blocks);
  draft.plan.estimate_ms = issue_time(work, tile.blocks, problem, device);
  draft.plan.tile = tile_plan(tile);
  draft.tile = describe(tile, problem.dtype);
  return draft;
}

}  // namespace

std::string describe(const DepthwisePlanesPlan& plan, DType) {
  std::ostringstream text;
  text << "tiles of " << plan.columns << " columns x " << plan.row_phases * plan.rows << " rows x " << plan.images
       << (plan.weight_gradient ? " images" : " channels") << ", "
       << (plan.phases == kDepthwiseColumns ? "taps of each column" : "taps of whole strips");
  return text.str();
}

std::string describe(const DepthwiseChannelsPlan& plan, DType) {
  std::ostringstream text;
  text << plan.lanes << " lanes of " << plan.vector << (plan.vector == 1 ? " channel x " : " channels x ");
  if (plan.weight_gradient) {
    text << plan.slots_w << " strips";
  } else {
    text << plan.slots_w << 'x' << plan.slots_h << " strips, " << plan.rows << " rows each";
  }
  return text.str();
}

std::optional<Plan> plan_depthwise(const Problem& problem, const Device& device, const PlannerOptions& options,
                                   std::vector<Candidate>* considered) {
  const Tensor4& pixels = problem.direction == Direction::kGradWeight ? problem.x : problem.result();
  const bool channels_innermost = pixels.stride[1] == 1 && pixels.size[1] > 1;
  Draft draft;
  draft.refusal = refusal(problem);
  if (draft.refusal.empty()) draft = channels_innermost ? plan_channels(problem, device) : plan_planes(problem, device);
  const bool is_alone = problem.groups == 1 &&
                        (problem.direction == Direction::kGradWeight ||
                         (problem.direction == Direction::kGradInput && problem.in_channels > problem.out_channels));
  const double moved = channels_innermost ? static_cast<double>(problem.bytes()) : moved_by_planes(problem);
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
