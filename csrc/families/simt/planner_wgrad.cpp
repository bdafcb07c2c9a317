// Tiles, stages and splits of wgrad.cuh.
#include <algorithm>
#include <sstream>

#include "core/correlation.h"
#include "families/simt/planner.h"
#include "planner/cost_model.h"
#include "planner/split_k.h"

namespace deconv {
namespace {

constexpr int kStagePixels = 64;  // enough work between two barriers
constexpr int kLeastSegments = 8;  // stages of a block
constexpr int kBlocksPerMultiprocessor = 12;  // for even ends and short sums

// Warp instructions to stage 32 elements; least cycles of a stage, with two blocks overlapping.
constexpr int kStageCost = 8, kStageLatency = 700;
// Share of the FMA rate that a thread tile reaches, by its loads.
constexpr double kEfficiency[kSimtWgradTileCount] = {1, 0.8, 0.55, 0.5, 0.12};
constexpr double kMeasuredOverCounted = 3.9;  // time over counted instructions; 3 to 5 on an H200
constexpr double kLaunchMs = 8e-3;

SimtWgradTile tile_shape(DType dtype, int index) {
  return dtype == DType::kFloat64 ? kSimtWgradTilesDouble[index] : kSimtWgradTiles[index];
}

// Cuts the pixels into stages; short rows are staged together.
void choose_stage(SimtWgradPlan& plan, const Axis& w, const SimtWgradTile& tile) {
  const int lanes_k = 32 / (tile.lanes_m * tile.lanes_n);
  const int target = std::max(kStagePixels, 4 * lanes_k);
  plan.pixels = std::clamp(power_of_two_at_least(w.input), std::max(lanes_k, 8), target);
  plan.rows = target / plan.pixels;
  const int64_t overlapping = (plan.pixels - 1) * w.stride + (plan.warps_tap - 1) * w.dilation + 1;
  const int64_t separate = plan.warps_tap * plan.pixels;
  plan.shared_span = overlapping <= separate;
  plan.span = std::min(overlapping, separate);
  plan.pixel_step = plan.shared_span ? w.stride : 1;
  plan.tap_step = plan.shared_span ? w.dilation : plan.pixels;
}

void choose_shared_memory(SimtWgradPlan& plan, const SimtWgradTile& tile, int accumulator) {
  // Packs stay aligned; single elements meet different banks.
  const auto pitch = [&](int channels, int thread) { return thread == 1 ? channels | 1 : channels + 16 / accumulator; };
  plan.x_pitch = pitch(tile.m() * plan.warps_m, tile.thread_m);
  plan.y_pitch = pitch(tile.n() * plan.warps_n, tile.thread_n);
  plan.y_at = round_up(accumulator * plan.rows * plan.pixels * plan.x_pitch, 16);
  plan.shared_bytes = plan.y_at + accumulator * plan.rows * plan.span * plan.y_pitch;
}

SimtWgradPlan candidate(const Problem& problem, int index, int warps_m, int warps_n) {
  const SimtWgradTile tile = tile_shape(problem.dtype, index);
  const auto& [h, w] = problem.axis;
  SimtWgradPlan plan;
  plan.tile = index;
  plan.warps_m = warps_m;
  plan.warps_n = warps_n;
  plan.blocks_tap = ceil_div(w.kernel, kSimtThreads / 32 / (warps_m * warps_n));
  plan.warps_tap = ceil_div(w.kernel, plan.blocks_tap);
  plan.blocks_m = ceil_div(problem.in_channels_per_group(), tile.m() * warps_m);
  plan.blocks_n = ceil_div(problem.out_channels_per_group(), tile.n() * warps_n);
  plan.blocks = int64_t{1} * plan.blocks_m * plan.blocks_n * plan.blocks_tap * h.kernel * problem.groups;
  choose_stage(plan, w, tile);
  choose_shared_memory(plan, tile, accumulator_size(problem.dtype));
  plan.segments = ceil_div(problem.batch * h.input, plan.rows) * ceil_div(w.input, plan.pixels);
  return plan;
}

void choose_splits(SimtWgradPlan& plan, const Device& device, int64_t partial_bytes) {
  const int64_t most = std::min(most_splits(partial_bytes), ceil_div(plan.segments, kLeastSegments));
  const int64_t wanted = ceil_div(kBlocksPerMultiprocessor * device.multiprocessors, std::max<int64_t>(1, plan.blocks));
  const SplitK split = split_evenly(plan.segments, std::max<int64_t>(1, std::min(wanted, most)));
  plan.segments_per_split = split.steps_per_split;
  plan.splits = split.splits;
  plan.blocks *= plan.splits;
}

// ms with all multiprocessors busy.
double work_ms(const SimtWgradPlan& plan, const Problem& problem, const Device& device) {
  const SimtWgradTile tile = tile_shape(problem.dtype, plan.tile);
  const double m = tile.m() * plan.warps_m, n = tile.n() * plan.warps_n, pixels = plan.rows * plan.pixels;
  const double multiply = m * n * plan.warps_tap * pixels / kEfficiency[plan.tile] * accumulator_size(problem.dtype) /
                          4;
  const double stage = (m * pixels + n * plan.rows * plan.span) * kStageCost;
  const double cycles = kMeasuredOverCounted * std::max<double>((multiply + stage) / 32 / 4, kStageLatency);
  const double computed = plan.blocks / plan.splits * plan.segments * cycles / (kClock * device.multiprocessors);
  return 1e3 * std::max(computed, problem.bytes() / device.bandwidth);
}

}  // namespace

std::string describe(const SimtWgradPlan& plan, DType dtype) {
  const SimtWgradTile tile = tile_shape(dtype, plan.tile);
  std::ostringstream text;
  text << plan.warps_tap << " taps x " << tile.m() * plan.warps_m << " input x " << tile.n() * plan.warps_n
       << " output channels, " << plan.rows << 'x' << plan.pixels << " pixels a stage";
  return text.str();
}

Plan plan_gather_weight(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  const int64_t partial_bytes = problem.w.numel() * accumulator_size(problem.dtype);
  std::optional<Plan> best;  // by work_ms: splits keep multiprocessors busy
  double best_work = 0;
  for (int index = 0; index < kSimtWgradTileCount; ++index) {
    for (int warps_m : {1, 2, 4}) {
      for (int warps_n : {1, 2}) {
        SimtWgradPlan plan = candidate(problem, index, warps_m, warps_n);
        const char* refusal = plan.shared_bytes > simt_shared_bytes(device)
                                  ? "needs more shared memory than lets two blocks share a multiprocessor"
                              : plan.blocks > INT32_MAX / 16 ? kTooManyBlocks
                                                             : nullptr;
        choose_splits(plan, device, partial_bytes);
        const double work = work_ms(plan, problem, device);
        const double busy = std::clamp<double>(plan.blocks, 1, device.multiprocessors);
        std::optional<Plan> accepted;
        consider_tile(accepted, plan, plan.splits > 1 ? plan.splits * partial_bytes : 0,
                      work * device.multiprocessors / busy + kLaunchMs, refusal, problem.dtype, considered);
        if (!accepted || (best && work >= best_work)) continue;
        best = accepted;
        best_work = work;
      }
    }
  }
  return served(best);
}

}  // namespace deconv
