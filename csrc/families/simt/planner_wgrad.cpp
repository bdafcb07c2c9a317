// Tiles, stages and splits of the gather family's grad_weight (kernels/gather/weight.cuh).
#include <algorithm>
#include <sstream>

#include "core/correlation.h"
#include "families/simt/planner.h"
#include "planner/cost_model.h"
#include "planner/split_k.h"

namespace deconv {
namespace {

constexpr int kStagePixels = 64;  // enough work between two barriers
constexpr int kLeastSegments = 8;  // of a block
// Blocks a multiprocessor takes in all: even ends, and short sums.
constexpr int kBlocksPerMultiprocessor = 12;

// Estimated: warp instructions to stage 32 elements; cycles of a stage at least, two blocks overlapping.
constexpr int kStageCost = 8, kStageLatency = 700;
// Share of the arithmetic rate that a thread tile reaches beside its loads, estimated.
constexpr double kEfficiency[kGatherWeightTileCount] = {1, 0.8, 0.55, 0.5, 0.12};
constexpr double kMeasuredOverCounted = 3.9;  // 3 to 5 on an H200
constexpr double kLaunchMs = 8e-3;

GatherWeightTile tile_shape(const Problem& problem, int index) {
  return problem.dtype == DType::kFloat64 ? kGatherWeightTilesDouble[index] : kGatherWeightTiles[index];
}

// How the pixels are cut into stages, whole rows together when they are short.
void choose_stage(GatherWeightPlan& plan, const Problem& problem, const GatherWeightTile& tile) {
  const Axis& w = problem.axis[1];
  const int lanes_k = 32 / (tile.lanes_m * tile.lanes_n);
  const int target = std::max(kStagePixels, 4 * lanes_k);
  plan.pixels = std::clamp(power_of_two_at_least(w.input), std::max(lanes_k, 8), target);
  plan.rows = target / plan.pixels;
  const int64_t overlapping = (plan.pixels - 1) * w.stride + (plan.warps_tap - 1) * w.dilation + 1;
  const int64_t separate = static_cast<int64_t>(plan.warps_tap) * plan.pixels;
  plan.shared_span = overlapping <= separate;
  plan.span = static_cast<int>(plan.shared_span ? overlapping : separate);
  plan.pixel_step = plan.shared_span ? static_cast<int>(w.stride) : 1;
  plan.tap_step = plan.shared_span ? static_cast<int>(w.dilation) : plan.pixels;
}

void choose_shared_memory(GatherWeightPlan& plan, const GatherWeightTile& tile, int64_t accumulator) {
  const int pack = 16 / static_cast<int>(accumulator);
  // Packs stay aligned; single elements go to different banks.
  const auto pitch = [&](int channels, int thread) { return thread == 1 ? channels | 1 : channels + pack; };
  plan.x_pitch = pitch(tile.m() * plan.warps_m, tile.thread_m);
  plan.y_pitch = pitch(tile.n() * plan.warps_n, tile.thread_n);
  plan.y_at = static_cast<int>(round_up(accumulator * plan.rows * plan.pixels * plan.x_pitch, 16));
  plan.shared_bytes = plan.y_at + static_cast<int>(accumulator * plan.rows * plan.span * plan.y_pitch);
}

GatherWeightPlan candidate_plan(const Problem& problem, int index, int warps_m, int warps_n) {
  const GatherWeightTile tile = tile_shape(problem, index);
  const int64_t kernel_w = problem.axis[1].kernel;
  GatherWeightPlan plan;
  plan.tile = index;
  plan.warps_m = warps_m;
  plan.warps_n = warps_n;
  plan.blocks_tap = static_cast<int>(ceil_div(kernel_w, kGatherThreads / 32 / (warps_m * warps_n)));
  plan.warps_tap = static_cast<int>(ceil_div(kernel_w, plan.blocks_tap));
  plan.blocks_m = static_cast<int>(ceil_div(problem.in_channels_per_group(), tile.m() * warps_m));
  plan.blocks_n = static_cast<int>(ceil_div(problem.out_channels_per_group(), tile.n() * warps_n));
  plan.blocks = static_cast<int64_t>(plan.blocks_m) * plan.blocks_n * plan.blocks_tap * problem.axis[0].kernel *
                problem.groups;
  choose_stage(plan, problem, tile);
  plan.segments = ceil_div(problem.batch * problem.axis[0].input, plan.rows) *
                  ceil_div(problem.axis[1].input, plan.pixels);
  choose_shared_memory(plan, tile, static_cast<int64_t>(accumulator_size(problem.dtype)));
  return plan;
}

// With all multiprocessors busy.
double work_ms(const GatherWeightPlan& plan, const Problem& problem, const Device& device) {
  const GatherWeightTile tile = tile_shape(problem, plan.tile);
  const double m = tile.m() * plan.warps_m, n = tile.n() * plan.warps_n, pixels = plan.rows * plan.pixels;
  const double multiply = m * n * plan.warps_tap * pixels / 32 / kEfficiency[plan.tile] *
                          accumulator_size(problem.dtype) / 4;
  const double stage = (m + n * plan.span / plan.pixels) * pixels / 32 * kStageCost;
  const double cycles = std::max<double>((multiply + stage) / 4, kStageLatency);
  const double stages = static_cast<double>(plan.blocks) * static_cast<double>(plan.segments);
  const double memory = static_cast<double>(problem.bytes()) / device.bandwidth;
  return 1e3 * std::max(kMeasuredOverCounted * stages * cycles / (kClock * device.multiprocessors), memory);
}

Plan with_splits(GatherWeightPlan plan, const Problem& problem, const Device& device) {
  const double work = work_ms(plan, problem, device);
  const int64_t partial = std::max<int64_t>(1, problem.w.numel() * accumulator_size(problem.dtype));
  const int64_t most = std::min(kWorkspaceLimit / partial, ceil_div(plan.segments, kLeastSegments));
  const int64_t wanted = ceil_div(kBlocksPerMultiprocessor * device.multiprocessors, std::max<int64_t>(1, plan.blocks));
  const SplitK split = split_evenly(plan.segments, std::max<int64_t>(1, std::min(wanted, most)));
  plan.segments_per_split = split.steps_per_split;
  plan.splits = split.splits;
  plan.blocks *= plan.splits;
  const double idle = static_cast<double>(device.multiprocessors) / std::max<double>(1, plan.blocks);
  return {plan, plan.splits > 1 ? plan.splits * partial : 0, work * std::max(1.0, idle) + kLaunchMs};
}

}  // namespace

std::string describe(const GatherWeightPlan& plan, DType dtype) {
  const GatherWeightTile tile = dtype == DType::kFloat64 ? kGatherWeightTilesDouble[plan.tile]
                                                         : kGatherWeightTiles[plan.tile];
  std::ostringstream text;
  text << plan.warps_tap << " taps x " << tile.m() * plan.warps_m << " input x " << tile.n() * plan.warps_n
       << " output channels, " << plan.rows << 'x' << plan.pixels << " pixels a stage";
  return text.str();
}

Plan plan_gather_weight(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  std::optional<Plan> best;  // of all multiprocessors busy, whatever the splits leave idle
  double best_work = 0;
  for (int index = 0; index < kGatherWeightTileCount; ++index) {
    for (int warps_m : {1, 2, 4}) {
      for (int warps_n : {1, 2}) {
        const GatherWeightPlan tile = candidate_plan(problem, index, warps_m, warps_n);
        const char* refusal = tile.shared_bytes > gather_shared_bytes(device)
                                  ? "needs more shared memory than lets two blocks share a multiprocessor"
                              : tile.blocks > INT32_MAX / 16 ? "needs more blocks than one grid may have"
                                                             : nullptr;
        std::optional<Plan> plan;
        consider_tile(plan, tile, refusal, problem, considered, [&] { return with_splits(tile, problem, device); });
        const double work = work_ms(tile, problem, device);
        if (!plan || (best && work >= best_work)) continue;
        best = plan;
        best_work = work;
      }
    }
  }
  return served(std::move(best));
}

}  // namespace deconv
