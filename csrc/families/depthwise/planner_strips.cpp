// Blocks and splits of strips.cuh.
#include "families/depthwise/planner.h"

#include <algorithm>

#include "core/correlation.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

constexpr int kRowsOfThread = 16, kBlocksPerMultiprocessor = 4, kWeightBlocksPerMultiprocessor = 2;
constexpr int kFirstRounds = 3;  // cost of starting a split, in strips of a thread

// Warp instructions, counted in sm_90 machine code.
constexpr double kItemCost = 120;  // a strip: place, bias, stores
constexpr double kRowCost = 20, kPixelCost = 4;  // a row of taps; one load with its place and bounds
// Measured over counted time, without the time to move all bytes: 1.0 to 2.6 on an H200. Alone: one group, in
// grad_weight and in grad_input of many channels from one: 2.7 to 4.1.
constexpr double kMeasuredOverCounted = 1.5, kMeasuredOverCountedAlone = 3.2;
// An axis as strips sees it. most_taps: of a phase or source phase. tap_pitch: pixels from one tap to the next.
struct StripsAxis : AxisGeometry {
  StripsAxis(const Problem& problem, int a) : AxisGeometry(geometry(problem, a)) {
    const int common = gcd(stride, dilation);
    most_taps = static_cast<int>(ceil_div(kernel, stride / common));
    tap_pitch = dilation / common;
  }
  int most_taps, tap_pitch;
};

// Splits of the `rounds` of each of `blocks`: the number that ends first, of those that just fill some waves.
int64_t splits_of(int64_t rounds, int64_t blocks, const Problem& problem, const Device& device) {
  constexpr int kMostWaves = 16;
  const int64_t sums = problem.w.numel() * static_cast<int64_t>(accumulator_size(problem.dtype));
  const int64_t at_once = static_cast<int64_t>(kWeightBlocksPerMultiprocessor) * device.multiprocessors;
  const int64_t most = std::max<int64_t>(1, std::min(kWorkspaceLimit / sums, rounds));
  int64_t best = 1, least = INT64_MAX;
  for (int64_t wave = 0; wave < kMostWaves; ++wave) {
    const int64_t splits = std::clamp<int64_t>((ceil_div(blocks, at_once) + wave) * at_once / blocks, 1, most);
    const int64_t cost = ceil_div(blocks * splits, at_once) * (ceil_div(rounds, splits) + kFirstRounds);
    if (cost < least) best = splits, least = cost;
  }
  return best;
}

// Lanes that leave few threads idle; as many as possible, because more lanes access longer pieces of memory.
int lanes_of(int64_t inner) {
  const auto busy = [inner](int lanes) {
    return static_cast<double>(kDepthwiseThreads / lanes * inner) / static_cast<double>(ceil_div(inner, lanes));
  };
  if (inner % 32 == 0) return 32;
  int best = static_cast<int>(std::min<int64_t>(inner, 128));
  for (int lanes = best - 1; lanes > 0; --lanes) {
    if (busy(lanes) > 1.05 * busy(best)) best = lanes;
  }
  return best;
}

// Neighbours that a thread loads or stores at once: channels, or phases of the width that share taps.
int vector_of(const Problem& problem, bool channels_inner) {
  const bool weight_gradient = problem.direction == Direction::kGradWeight;
  const int size = static_cast<int>(element_size(problem.dtype));
  if (channels_inner) {
    const int channels = weight_gradient ? depthwise_phases(size) : 16 / size;
    const bool is_depthwise = problem.in_channels == problem.groups && problem.out_channels == problem.groups;
    return is_depthwise && problem.groups % channels == 0 && moves_packs(problem, problem.x, 1, channels) &&
                   moves_packs(problem, problem.y, 1, channels)
               ? channels
               : 1;
  }
  const Axis& w = problem.axis[1];
  const int phases = depthwise_phases(size);
  const bool are_whole = w.stride % phases == 0 && w.padding % phases == 0 && w.kernel % phases == 0 &&
                         w.output % phases == 0 && w.dilation == 1;
  return !weight_gradient && are_whole && moves_packs(problem, problem.y, 3, phases) ? phases : 1;
}

// Blocks of forward and grad_input; returns the warp instructions of a thread's strip.
double set_blocks(DepthwiseStripsPlan& tile, const Problem& problem, const Device& device, const StripsAxis& rows,
                  const StripsAxis& strips) {
  const bool forward = rows.is_forward, inner = tile.channels_inner;
  const int pixel = inner || !forward ? tile.vector : 1, phases = inner ? 1 : tile.vector;
  const int64_t channels = problem.result().size[1];
  const int64_t sources = forward ? problem.in_channels_per_group() : problem.out_channels_per_group();
  tile.tap_rows = forward ? rows.most_taps : rows.kernel / phases;
  tile.tap_columns = forward ? strips.most_taps : strips.kernel;
  const int64_t weights = static_cast<int64_t>(tile.tap_rows) * tile.tap_columns * sources * tile.vector *
                          static_cast<int64_t>(accumulator_size(problem.dtype));
  const int64_t line = channels * strips.phases() / tile.vector;  // adjacent threads, channels innermost
  tile.lanes = inner ? lanes_of(line) : rows.phases() / (forward ? phases : 1);
  while (inner && tile.lanes > 1 && tile.lanes * weights > kDepthwiseSharedBytes) tile.lanes /= 2;
  const int strip = depthwise_strip(inner ? tile.vector : 1);
  const int64_t all_rows = rows.phase_size(0), all_strips = ceil_div(strips.phase_size(0), strip);
  const int64_t first = inner ? all_strips : all_rows, second = inner ? all_rows : all_strips;
  const int64_t slots = std::max(1, kDepthwiseThreads / tile.lanes);
  tile.blocks_first = static_cast<int>(ceil_div(first, slots));
  tile.first_slots = static_cast<int>(ceil_div(first, tile.blocks_first));
  tile.second_slots = static_cast<int>(std::min(slots / tile.first_slots, second));
  if (!inner) {
    const int64_t most = std::max<int64_t>(1, kDepthwiseSharedBytes / (tile.lanes * weights));
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
  const double loads = strip * tile.chunks[1] + strips.most_taps;
  const double of_row = kRowCost + loads * (kPixelCost + pixel / 2.0) + strip * tile.vector * strips.most_taps;
  return kItemCost + static_cast<double>(tile.tap_rows * strips.planes() * sources) * of_row;
}

// Blocks of grad_weight; returns the warp instructions of a thread's strip.
double set_passes(DepthwiseStripsPlan& tile, const Problem& problem, const Device& device, const StripsAxis& rows,
                  const StripsAxis& strips) {
  const bool inner = tile.channels_inner;
  const int64_t pairs = problem.in_channels * problem.out_channels_per_group();
  tile.lanes = inner ? lanes_of(pairs / tile.vector) : rows.stride;
  tile.first_slots = kDepthwiseThreads / tile.lanes;
  // Includes source phases beyond the image: their taps get zeros.
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
  const int64_t splits = splits_of(rounds, tile.blocks, problem, device);
  tile.units_per_split = static_cast<int>(std::min<int64_t>(ceil_div(rounds, splits) * tile.first_slots, tile.units));
  tile.splits = static_cast<int>(ceil_div(tile.units, tile.units_per_split));
  tile.blocks *= tile.splits;
  const double loads = strip + tile.chunk[0] * (strip + tile.chunk[1] - 1.0);
  return kItemCost + loads * (kPixelCost + tile.vector / 2.0) + strip * tile.vector * tile.chunk[0] * tile.chunk[1];
}

}  // namespace

std::pair<DepthwiseStripsPlan, double> plan_strips(const Problem& problem, const Device& device) {
  DepthwiseStripsPlan tile;
  tile.channels_inner = has_inner_channels(problem);
  const StripsAxis rows(problem, tile.channels_inner ? 0 : 1), strips(problem, tile.channels_inner ? 1 : 0);
  tile.weight_gradient = problem.direction == Direction::kGradWeight;
  tile.vector = vector_of(problem, tile.channels_inner);
  const auto set_chunks = [&](int a, const StripsAxis& axis, int chunk) {
    tile.chunk[a] = axis.tap_pitch == 1 ? std::min(chunk, axis.most_taps) : 1;
    tile.chunks[a] = static_cast<int>(ceil_div(axis.most_taps, tile.chunk[a]));
  };
  set_chunks(0, rows, kDepthwiseTapRows);
  set_chunks(1, strips, kDepthwiseTapColumns);
  const double of_strip = (tile.weight_gradient ? set_passes : set_blocks)(tile, problem, device, rows, strips);
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
  const int64_t rounds = tile.weight_gradient ? tile.blocks / tile.splits * ceil_div(tile.units, tile.first_slots)
                                              : tile.blocks * tile.rows;
  const double warps = static_cast<double>(rounds) * kDepthwiseThreads / 32;
  const int64_t busy = std::min<int64_t>(2 * device.multiprocessors, tile.blocks);  // two blocks a multiprocessor
  const double issue = of_strip * warps / (2.0 * static_cast<double>(busy) * kClock) *
                       static_cast<double>(accumulator_size(problem.dtype)) / 4;  // float64 issues at half rate
  const bool is_alone = problem.groups == 1 && (tile.weight_gradient || (problem.direction == Direction::kGradInput &&
                                                                         problem.in_channels > problem.out_channels));
  const double measured = (is_alone ? kMeasuredOverCountedAlone : kMeasuredOverCounted) * issue;
  return {tile, 1e3 * (measured + static_cast<double>(problem.bytes()) / device.bandwidth)};
}

bool has_inner_channels(const Problem& problem) {
  const Tensor4& pixels = problem.direction == Direction::kGradWeight ? problem.x : problem.result();
  return pixels.stride[1] == 1 && pixels.size[1] > 1;
}

bool moves_packs(const Problem& problem, const Tensor4& tensor, int inner, int64_t count) {
  const bool reads_both = problem.direction == Direction::kGradWeight;
  if (count > 1 && (problem.unaligned_first || (reads_both && problem.unaligned_second))) return false;
  for (int d = 0; d < 4; ++d) {
    if (tensor.size[d] > 1 && (d == inner ? tensor.stride[d] != 1 : tensor.stride[d] % count != 0)) return false;
  }
  return true;
}

}  // namespace deconv
