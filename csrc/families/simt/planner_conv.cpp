// Tiles of the gather family's forward and grad_input (kernels/gather/conv.cuh).
#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/correlation.h"
#include "families/simt/planner.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

// Instructions around one element, estimated; they rank tiles and do not predict times.
constexpr double kStageCost = 5, kWeightCost = 6, kPositionCost = 100, kStoreCost = 6;
// A store of less than a sector occupies the memory pipe as a whole one would.
constexpr double kScatteredStoreCost = 24;
// Measured time over what the counts above say: 1.7 to 3.7 in 20 timings on an H200, so
// that families compare.
constexpr double kMeasuredOverCounted = 2.6;
// Over the time to move all bytes, where that is more: 1.5 to 2.1, the most where planes of the width read the same
// sectors (kb1_81, grad_input).
constexpr double kMeasuredOverMoved = 1.6, kMeasuredOverMovedByPlanes = 2.1;
// Over the time to write every sector of a contiguous result once for each phase of the width: kb1_81 in float32.
constexpr double kMeasuredOverScattered = 1.08;
constexpr double kLaunchMs = 5.5e-3;
// Where planes along the width read the same sectors and fewer products than this come of an element, stage so few
// channels that one plane's sectors are still in the L2 of an H200 when the next plane comes (kb1_81, grad_input).
constexpr int kPlanesWork = 64;
constexpr int kPlanesChunk = 8;

struct TapExtents {
  int most = 0;  // taps of the fullest phase and plane
  int shift_step = 1;
};

TapExtents tap_extents(const AxisGeometry& axis) {
  const int common = gcd(axis.stride, axis.dilation);
  TapExtents extents;
  extents.most = static_cast<int>(ceil_div(axis.kernel, axis.stride / common));
  extents.shift_step = axis.dilation / common;
  return extents;
}

// Largest tap groups whose halo the tile's padding and a bounded number of rows can hold.
void choose_tap_groups(GatherConvPlan& plan, const TapExtents& h, const TapExtents& w) {
  constexpr int kHaloRows = 16;
  const int spare_columns = gather_pitch(plan.lane_columns) - plan.lane_columns;
  plan.taps_w = std::clamp(spare_columns / w.shift_step + 1, 1, std::max(w.most, 1));
  plan.taps_h = std::clamp(kHaloRows / h.shift_step + 1, 1, std::max(h.most, 1));
}

void choose_chunk(GatherConvPlan& plan, const Problem& problem, const TapExtents& h, int64_t shared_limit) {
  const int64_t accumulator = static_cast<int64_t>(accumulator_size(problem.dtype));
  const int64_t channels = correlation(problem).source_channels;
  const int thread_m = gather_thread_m(accumulator);
  const int pitch = gather_pitch(plan.lane_columns);
  const int rows = plan.units_h * kGatherThreadRows + (plan.taps_h - 1) * h.shift_step;
  // Units of one warp that lie in different images must also meet different banks.
  const int64_t units_h_in_warp = std::min(plan.units_h, 32 / plan.lane_columns);
  const int64_t phase = plan.lane_columns * units_h_in_warp % 32;
  plan.image_pitch = static_cast<int>(round_up(static_cast<int64_t>(rows) * pitch - phase, 32) + phase);
  plan.positions = plan.image_pitch * plan.units_n;
  plan.channel_pitch = static_cast<int>(round_up(plan.positions, 4) + 4);
  plan.weight_pitch = plan.warps_m * thread_m + 4;

  plan.taps_at = static_cast<int>(round_up(plan.positions * 8, 16));
  const int64_t fixed = plan.taps_at + round_up(2 * kGatherKnownPlanes * sizeof(AxisTaps), 16);
  const auto bytes = [&](int64_t chunk) {
    const int64_t weights = round_up(chunk * plan.taps_h * plan.taps_w * plan.weight_pitch * accumulator, 16);
    return fixed + weights + chunk * plan.channel_pitch * accumulator;
  };
  // Enough work between two barriers: some 128 to 256 taps times channels.
  const bool reread_matters = geometry(problem, 1).planes() > 1 &&
                              plan.warps_m * thread_m * plan.taps_h * plan.taps_w < kPlanesWork;
  plan.chunk = std::clamp(256 / power_of_two_at_least(plan.taps_h * plan.taps_w), 4,
                          reread_matters ? kPlanesChunk : 32);
  plan.chunk = std::min(plan.chunk, std::max(power_of_two_at_least(channels), 4));
  while (plan.chunk > 1 && bytes(plan.chunk) > shared_limit) plan.chunk /= 2;
  while (bytes(plan.chunk) > shared_limit && (plan.taps_h > 1 || plan.taps_w > 1)) {
    (plan.taps_h > 1 ? plan.taps_h : plan.taps_w) -= 1;
  }
  plan.weights_at = static_cast<int>(fixed);
  plan.tile_at = static_cast<int>(bytes(plan.chunk) - plan.chunk * plan.channel_pitch * accumulator);
  plan.shared_bytes = static_cast<int>(bytes(plan.chunk));
}

double gather_conv_ms(const GatherConvPlan& plan, const Problem& problem, const Device& device) {
  const Correlation c = correlation(problem);
  const AxisGeometry h = geometry(problem, 0), w = geometry(problem, 1);
  const double accumulator = static_cast<double>(accumulator_size(problem.dtype));
  const double phases = std::max(1.0, static_cast<double>(h.phases()) * w.phases());  // none in an empty result
  const double taps = static_cast<double>(h.kernel) * w.kernel / phases;  // of a block, on average
  const double planes = std::min<double>(taps, static_cast<double>(h.planes()) * w.planes());
  const double block_m = plan.warps_m * gather_thread_m(static_cast<size_t>(accumulator));
  const double pixels = static_cast<double>(plan.units_h) * plan.units_n * kGatherThreadRows * plan.lane_columns;
  // Warp instructions of a block; a float64 one takes two issue slots.
  const double multiply = c.source_channels * taps * block_m * pixels / 32 * (accumulator / 4) * 1.2;
  const double stage = c.source_channels * planes * plan.positions / 32 * kStageCost +
                       c.source_channels * taps * block_m / 32 * kWeightCost +
                       planes * plan.positions / 32 * kPositionCost;
  const double store = block_m * pixels / 32 *
                       (problem.result_layout == Layout::kContiguous && w.phases() == 1 ? kStoreCost
                                                                                        : kScatteredStoreCost);
  const double cycles = (multiply + stage + store) / 4;
  const double per_sm = static_cast<double>(plan.blocks) / device.multiprocessors;
  const double rounds = per_sm > 2 ? 2 * std::ceil(per_sm / 2) : std::ceil(per_sm);
  const double memory = static_cast<double>(problem.bytes()) / device.bandwidth;
  const double element = static_cast<double>(element_size(problem.dtype));
  const double writes = c.result.stride[3] == 1 ? std::min(static_cast<double>(w.phases()), kSectorBytes / element) : 1;
  const double scattered = writes * element * static_cast<double>(c.result.numel()) / device.bandwidth;
  const bool by_planes = w.planes() > 1 && c.source.stride[3] == 1;
  const double moved = (by_planes ? kMeasuredOverMovedByPlanes : kMeasuredOverMoved) * memory;
  return 1e3 * std::max({kMeasuredOverCounted * rounds * cycles / kClock, moved, kMeasuredOverScattered * scattered}) +
         kLaunchMs;
}

}  // namespace

std::string describe(const GatherConvPlan& plan, DType dtype) {
  std::ostringstream text;
  text << plan.warps_m * gather_thread_m(accumulator_size(dtype)) << " channels x (" << plan.units_n << " images, "
       << plan.units_h * kGatherThreadRows << " rows, " << plan.lane_columns << " columns)";
  return text.str();
}

namespace {

GatherConvPlan gather_conv_candidate(const Problem& problem, const Device& device, int lane_columns, int warps_m) {
  const Correlation c = correlation(problem);
  const AxisGeometry h = geometry(problem, 0), w = geometry(problem, 1);
  GatherConvPlan plan;
  plan.lane_columns = lane_columns;
  plan.warps_m = warps_m;
  const int units = kGatherThreads / 32 / warps_m * (32 / lane_columns);
  plan.units_h = std::min(units, power_of_two_at_least(ceil_div(h.phase_size(0), kGatherThreadRows)));
  plan.units_n = units / plan.units_h;
  const TapExtents taps_h = tap_extents(h), taps_w = tap_extents(w);
  choose_tap_groups(plan, taps_h, taps_w);
  choose_chunk(plan, problem, taps_h, gather_shared_bytes(device));
  const int thread_m = gather_thread_m(accumulator_size(problem.dtype));
  plan.blocks_m = static_cast<int>(ceil_div(c.result_channels, thread_m * warps_m));
  plan.blocks_w = static_cast<int>(ceil_div(w.phase_size(0), lane_columns));
  plan.blocks_h = static_cast<int>(ceil_div(h.phase_size(0), kGatherThreadRows * plan.units_h));
  plan.blocks_n = static_cast<int>(ceil_div(problem.batch, plan.units_n));
  plan.blocks = static_cast<int64_t>(h.phases()) * w.phases() * plan.blocks_m * plan.blocks_w * plan.blocks_h *
                plan.blocks_n * problem.groups;
  const int64_t pack = 16 / element_size(problem.dtype);
  plan.vector_source = plan.chunk % pack == 0 && packs_along_channels(c.source, c.source_channels, pack);
  plan.vector_result = packs_along_channels(c.result, c.result_channels, std::min<int64_t>(pack, thread_m));
  return plan;
}

}  // namespace

Plan plan_gather_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  Plan best;
  best.estimate_ms = -1;
  for (int lane_columns : {32, 16, 8}) {
    for (int warps_m : {8, 4, 2, 1}) {
      const GatherConvPlan tile = gather_conv_candidate(problem, device, lane_columns, warps_m);
      Candidate candidate{considered ? "simt family, " + describe(tile, problem.dtype) : "", 0, ""};
      if (tile.shared_bytes > device.shared_bytes_per_block) {
        candidate.refusal = "needs more shared memory than a block may have";
      } else if (tile.blocks > INT32_MAX) {
        candidate.refusal = "needs more blocks than one grid may have";
      } else {
        candidate.estimate_ms = gather_conv_ms(tile, problem, device);
        if (considered) candidate.plan = std::make_shared<const Plan>(Plan{tile_plan(tile), 0, candidate.estimate_ms});
        if (best.estimate_ms < 0 || candidate.estimate_ms < best.estimate_ms) {
          best.tile = tile_plan(tile);
          best.estimate_ms = candidate.estimate_ms;
        }
      }
      if (considered) considered->push_back(std::move(candidate));
    }
  }
  if (best.estimate_ms < 0)
    throw InvalidArgument(
        "conv_transpose2d: no tile fits this GPU, or the problem needs more blocks than one grid may have");
  return best;
}

}  // namespace deconv
