// Segments and lanes of row_stream.cuh.
#include <algorithm>
#include <cmath>

#include "core/taps.h"
#include "families/depthwise/planner.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

// Warp instructions, counted in sm_90 machine code: of a step; for each element that a thread loads or stores; for a
// thread's place and weights. kIssued: share of the issue rate that is reached; the rest is waits.
constexpr double kStepCost = 24, kElementCost = 3, kBeginCost = 300, kIssued = 0.6;
constexpr double kMovedOverCopied = 1.2;  // memory's time over that of a copy
constexpr int64_t kLeastSegmentRows = 4;
constexpr int kWarp = 32;

// Bytes of one access; 0 if row_stream does not serve the problem.
int bytes_at_once(const Problem& problem, bool channels_inner) {
  const Axis &h = problem.axis[0], &w = problem.axis[1];
  const int size = static_cast<int>(element_size(problem.dtype));
  const bool is_compiled = any_depthwise_rows(
      [&](auto stride, auto kernel) { return w.stride == stride && w.kernel == kernel; });
  if (problem.in_channels != problem.groups || problem.out_channels != problem.groups || size > 4 || !is_compiled ||
      h.kernel != w.kernel || h.stride != w.stride || h.dilation != 1 || w.dilation != 1) {
    return 0;
  }
  const auto moves = [&](int inner, int64_t of_x, int64_t of_y) {
    return moves_packs(problem, problem.x, inner, of_x) && moves_packs(problem, problem.y, inner, of_y);
  };
  const int stride = static_cast<int>(w.stride);
  const int64_t more_padding = w.padding - depthwise_rows_padding(static_cast<int>(w.kernel), stride);
  if (channels_inner) {
    const auto moves_bytes = [&](int bytes) {
      return problem.groups % (bytes / size) == 0 && moves(1, bytes / size, bytes / size);
    };
    return more_padding % stride != 0 ? 0 : moves_bytes(16) ? 16 : moves_bytes(4) ? 4 : 0;
  }
  const int columns = depthwise_rows_columns(size, stride, false, DepthwiseRowsRead::kInput);
  const bool is_whole = more_padding == 0 && w.output == w.input * stride && w.input % columns == 0;
  return is_whole && moves(3, columns, columns * stride) ? 16 : 0;
}

// Arranges threads of `columns` columns and `channels` channels.
void set_lanes(DepthwiseRowsPlan& p, const Problem& problem, int columns, int channels) {
  const Axis& w = problem.axis[1];
  const bool forward = problem.direction == Direction::kForward;
  p.line_runs = static_cast<int>(forward ? ceil_div(w.output, columns * p.stride) : ceil_div(w.input, columns));
  if (p.channels_inner) {
    const int64_t threads = problem.in_channels / channels;
    // Two warps read twice as much of a pixel at once. grad_weight adds lanes within one warp only.
    const int64_t warps = p.weight_gradient || threads % (2 * kWarp) != 0 ? 1 : 2;
    p.lanes = static_cast<int>(std::min<int64_t>(warps * kWarp, power_of_two_at_least(threads)));
    p.parts = p.line_runs;
    p.channel_blocks = static_cast<int>(ceil_div(threads, p.lanes));
    p.shift = static_cast<int>((w.padding - depthwise_rows_padding(p.kernel, p.stride)) / p.stride);
  } else {
    p.lanes = std::min(kWarp, power_of_two_at_least(p.line_runs));
    p.parts = static_cast<int>(p.line_runs <= kWarp ? 1 : ceil_div(p.line_runs, kWarp - 2));
    p.part_runs = static_cast<int>(ceil_div(p.line_runs, p.parts));
    p.channel_blocks = static_cast<int>(problem.in_channels);
  }
}

void set_segments(DepthwiseRowsPlan& p, int64_t batch, int64_t rows, int64_t segments) {
  p.segment_rows = static_cast<int>(ceil_div(rows, segments));
  p.segments = static_cast<int>(ceil_div(rows, p.segment_rows));
  p.units = static_cast<int64_t>(p.parts) * p.segments * batch;
  const int64_t threads = p.units * p.lanes;
  p.threads = static_cast<int>(std::min<int64_t>(kDepthwiseThreads, round_up(threads, kWarp)));
  p.unit_blocks = static_cast<int>(std::min<int64_t>(INT32_MAX, ceil_div(threads, p.threads)));
  p.blocks = static_cast<int64_t>(p.unit_blocks) * p.channel_blocks;
  p.splits = p.weight_gradient ? p.unit_blocks : 1;
}

}  // namespace

std::optional<std::pair<DepthwiseRowsPlan, double>> plan_row_stream(const Problem& problem, const Device& device) {
  if (!device.has_mma) return std::nullopt;  // cp.async needs compute capability 8.0
  const bool forward = problem.direction == Direction::kForward;
  const Axis& h = problem.axis[0];
  const int element = static_cast<int>(element_size(problem.dtype));
  DepthwiseRowsPlan p;
  p.channels_inner = has_inner_channels(problem);
  p.moved = bytes_at_once(problem, p.channels_inner);
  if (p.moved == 0) return std::nullopt;
  p.weight_gradient = problem.direction == Direction::kGradWeight;
  p.read = forward             ? DepthwiseRowsRead::kInput
           : p.weight_gradient ? DepthwiseRowsRead::kBoth
                               : DepthwiseRowsRead::kOutput;
  p.stride = static_cast<int>(h.stride);
  p.kernel = static_cast<int>(h.kernel);
  const int channels = depthwise_rows_channels(element, p.channels_inner);
  const int columns = depthwise_rows_columns(element, p.stride, p.channels_inner, p.read);
  set_lanes(p, problem, columns, channels);
  p.first_row = forward ? static_cast<int>(h.padding / h.stride) : 0;
  const int64_t rows = forward ? (h.output - 1 + h.padding) / h.stride - p.first_row + 1 : h.input;

  const double moved = columns * (1.0 + p.stride) * channels * kElementCost;
  const double of_step = kStepCost + p.kernel * p.kernel * columns * channels + moved;
  const auto thread_cost = [&] {
    return kBeginCost + of_step * (p.segment_rows + depthwise_rows_history(p.kernel, p.stride) - 1);
  };
  const auto all_warps = [&] { return static_cast<double>(p.blocks) * p.threads / kWarp; };
  // Rounds of blocks until the last one ends; of many rounds the last need not be full.
  const auto rounds = [&] {
    const double at_once = depthwise_rows_blocks(p.channels_inner) * kDepthwiseThreads / kWarp * device.multiprocessors;
    const double waves = all_warps() / at_once;
    return waves > 4 ? waves : std::ceil(waves);
  };
  // Chooses the segments with the shortest time. A thread that writes several lines a step, each in pieces, gets short
  // segments instead: adjacent lines then leave soon after each other.
  const int64_t most = ceil_div(rows, kLeastSegmentRows);
  int64_t segments = most;
  if (!forward || p.stride == 1 || p.channels_inner) {
    double least = INFINITY;
    for (int64_t count = 1; count <= most; count = std::max(count + 1, count * 9 / 8)) {  // tall images try dozens
      set_segments(p, problem.batch, rows, count);
      const double time = rounds() * thread_cost();
      if (time < least) segments = count, least = time;
    }
  }
  set_segments(p, problem.batch, rows, segments);
  p.by_parts = divide_by(p.parts);
  p.by_segments = divide_by(p.segments);
  p.by_channel_blocks = divide_by(p.channel_blocks);
  const int step_bytes = depthwise_rows_step_bytes(element, p.stride, p.kernel, p.channels_inner, p.read);
  p.shared_bytes = p.threads / kWarp * depthwise_rows_ring_bytes(step_bytes);
  const int64_t workspace = p.splits * problem.w.numel() * static_cast<int64_t>(sizeof(float));
  if (p.units * p.lanes > INT32_MAX / 2 || p.blocks > INT32_MAX || (p.splits > 1 && workspace > kWorkspaceLimit) ||
      p.shared_bytes > device.shared_bytes_per_block) {
    return std::nullopt;
  }
  const double busy = std::min(1.0, all_warps() / (8.0 * device.multiprocessors));
  const double issue = all_warps() * thread_cost() / (4.0 * device.multiprocessors * busy * kClock * kIssued);
  const double memory = kMovedOverCopied * static_cast<double>(problem.bytes()) / device.bandwidth;
  return std::pair(p, 1e3 * std::max(issue, memory));  // without launches, like plan_strips
}

}  // namespace deconv
