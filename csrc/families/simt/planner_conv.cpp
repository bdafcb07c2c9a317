// Tiles of conv.cuh.
#include <algorithm>
#include <sstream>

#include "core/correlation.h"
#include "families/simt/planner.h"

namespace deconv {
namespace {

// Warp instructions for 32 elements: staging, weights, the table of positions, stores of whole or partial sectors.
constexpr int kStageCost = 5, kWeightCost = 6, kPositionCost = 100, kStoreCost = 6, kScatteredStoreCost = 24;
constexpr int kMeasuredOverCounted = 3;  // time over counted instructions; 1.7 to 3.7 on an H200
constexpr int kMeasuredOverMoved = 2;  // over the time to move all bytes, if longer; 1.5 to 2.1
constexpr double kLaunchMs = 5.5e-3;

int common_step(const AxisGeometry& axis) { return gcd(axis.stride, axis.dilation); }
int shift_step(const AxisGeometry& axis) { return axis.dilation / common_step(axis); }

// The largest tap group along an axis, by the room for its halo.
int taps_of_group(const AxisGeometry& axis, int halo) {
  const int most = ceil_div(axis.kernel, axis.stride / common_step(axis));  // of the fullest phase and source phase
  return std::clamp(halo / shift_step(axis) + 1, 1, std::max(most, 1));
}

void choose_chunk(SimtConvPlan& plan, const Problem& problem, int shift_step_h, int shared_limit) {
  const int64_t accumulator = accumulator_size(problem.dtype), channels = correlation(problem).source_channels;
  const int64_t rows = plan.units_h * kSimtThreadRows + (plan.taps_h - 1) * shift_step_h;
  // Units of one warp in different images must meet different banks, too.
  const int phase = plan.lane_columns * std::min(plan.units_h, 32 / plan.lane_columns) % 32;
  plan.image_pitch = round_up(rows * simt_pitch(plan.lane_columns) - phase, 32) + phase;
  plan.positions = plan.image_pitch * plan.units_n;
  plan.channel_pitch = round_up(plan.positions, 4) + 4;
  plan.weight_pitch = plan.warps_m * simt_thread_m(accumulator) + 4;
  plan.taps_at = round_up(plan.positions * 8, 16);
  plan.weights_at = plan.taps_at + round_up(2 * kSimtKnownPlanes * sizeof(AxisTaps), 16);
  const auto tile_at = [&] {
    return plan.weights_at + round_up(plan.chunk * plan.taps_h * plan.taps_w * plan.weight_pitch * accumulator, 16);
  };
  const auto bytes = [&] { return tile_at() + plan.chunk * plan.channel_pitch * accumulator; };
  // Enough work between two barriers: about 128 to 256 taps x channels.
  plan.chunk = std::clamp(256 / power_of_two_at_least(plan.taps_h * plan.taps_w), 4, 32);
  plan.chunk = std::min(plan.chunk, std::max(power_of_two_at_least(channels), 4));
  while (plan.chunk > 1 && bytes() > shared_limit) plan.chunk /= 2;
  while (bytes() > shared_limit && (plan.taps_h > 1 || plan.taps_w > 1)) {
    (plan.taps_h > 1 ? plan.taps_h : plan.taps_w) -= 1;
  }
  plan.tile_at = tile_at();
  plan.shared_bytes = bytes();
}

SimtConvPlan candidate(const Problem& problem, const Device& device, int lane_columns, int warps_m) {
  const Correlation c = correlation(problem);
  const AxisGeometry h = geometry(problem, 0), w = geometry(problem, 1);
  const int64_t thread_m = simt_thread_m(accumulator_size(problem.dtype)), pack = 16 / element_size(problem.dtype);
  const int units = kSimtThreads / lane_columns / warps_m;
  constexpr int kHaloRows = 16;
  SimtConvPlan plan;
  plan.lane_columns = lane_columns;
  plan.warps_m = warps_m;
  plan.units_h = std::min(units, power_of_two_at_least(ceil_div(h.phase_size(0), kSimtThreadRows)));
  plan.units_n = units / plan.units_h;
  plan.taps_h = taps_of_group(h, kHaloRows);
  plan.taps_w = taps_of_group(w, simt_pitch(lane_columns) - lane_columns);
  choose_chunk(plan, problem, shift_step(h), simt_shared_bytes(device));
  plan.blocks_m = ceil_div(c.result_channels, thread_m * warps_m);
  plan.blocks_w = ceil_div(w.phase_size(0), lane_columns);
  plan.blocks_h = ceil_div(h.phase_size(0), kSimtThreadRows * plan.units_h);
  plan.blocks_n = ceil_div(problem.batch, plan.units_n);
  plan.blocks = int64_t{1} * h.phases() * w.phases() * plan.blocks_m * plan.blocks_w * plan.blocks_h * plan.blocks_n *
                problem.groups;
  plan.vector_source = plan.chunk % pack == 0 && packs_along_channels(c.source, c.source_channels, pack);
  plan.vector_result = packs_along_channels(c.result, c.result_channels, std::min(pack, thread_m));
  return plan;
}

double estimate_ms(const SimtConvPlan& plan, const Problem& problem, const Device& device) {
  const AxisGeometry h = geometry(problem, 0), w = geometry(problem, 1);
  const double phases = std::max<int64_t>(1, int64_t{h.phases()} * w.phases());  // none in an empty result
  const double taps = int64_t{h.kernel} * w.kernel / phases;  // of a block, on average
  const double planes = std::min<double>(taps, int64_t{h.planes()} * w.planes());
  const double channels = correlation(problem).source_channels;
  const double block_m = plan.warps_m * simt_thread_m(accumulator_size(problem.dtype));
  const double pixels = plan.units_h * plan.units_n * kSimtThreadRows * plan.lane_columns;
  const bool stores_whole = problem.result_layout == Layout::kContiguous && w.phases() == 1;
  const double issue = accumulator_size(problem.dtype) / 4;  // issue slots of an FMA
  const double instructions = channels * taps * block_m * (pixels * issue + kWeightCost) +
                              planes * plan.positions * (channels * kStageCost + kPositionCost) +
                              block_m * pixels * (stores_whole ? kStoreCost : kScatteredStoreCost);
  const int64_t pairs = ceil_div(plan.blocks, 2 * device.multiprocessors);  // of blocks that share a multiprocessor
  const double rounds = pairs > 1 ? 2 * pairs : ceil_div(plan.blocks, device.multiprocessors);
  const double cycles = rounds * instructions / 32 / 4;
  return 1e3 *
             std::max(kMeasuredOverCounted * cycles / kClock, kMeasuredOverMoved * problem.bytes() / device.bandwidth) +
         kLaunchMs;
}

}  // namespace

std::string describe(const SimtConvPlan& plan, DType dtype) {
  std::ostringstream text;
  text << plan.warps_m * simt_thread_m(accumulator_size(dtype)) << " channels x (" << plan.units_n << " images, "
       << plan.units_h * kSimtThreadRows << " rows, " << plan.lane_columns << " columns)";
  return text.str();
}

Plan plan_gather_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  std::optional<Plan> best;
  for (int lane_columns : {32, 16, 8}) {
    for (int warps_m : {8, 4, 2, 1}) {
      const SimtConvPlan tile = candidate(problem, device, lane_columns, warps_m);
      const char* refusal = tile.shared_bytes > device.shared_bytes_per_block
                                ? "needs more shared memory than a block may have"
                            : tile.blocks > INT32_MAX ? kTooManyBlocks
                                                      : nullptr;
      consider_tile(best, tile, 0, estimate_ms(tile, problem, device), refusal, problem.dtype, considered);
    }
  }
  return served(best);
}

}  // namespace deconv
