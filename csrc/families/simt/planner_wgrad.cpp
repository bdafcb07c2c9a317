// Tiles, stages and splits of the gather family's grad_weight (kernels/gather/weight.cuh).
#include <algorithm>
#include <sstream>

#include "core/correlation.h"
#include "families/simt/planner.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

constexpr int kTiles = kGatherWeightTileCount;
// Share of the arithmetic rate that a thread tile reaches beside its loads, estimated.
constexpr double kEfficiency[kTiles] = {1.0, 0.8, 0.55, 0.5, 0.12};
// Cycles that a stage takes at least, for its loads to come and its barriers to pass (two blocks overlap); estimated.
constexpr double kStageLatency = 700;
// Timings over what is counted here, on an H200: 3 to 5 on the layers that this family has served in reports.
constexpr double kMeasuredOverCounted = 3.9;
// Pixels of a stage: enough work between two barriers.
constexpr int kStagePixels = 64;
// Warp instructions to stage 32 elements, estimated.
constexpr double kStageCost = 8;
constexpr double kLaunchMs = 8e-3;
constexpr int kLeastSegments = 8;  // of a block
// Blocks a multiprocessor takes in all: even ends, and short sums.
constexpr int kBlocksPerMultiprocessor = 12;

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
  choose_shared_memory(plan, tile, static_cast<int64_t>(accumulator_size(problem.dtype)));
  return plan;
}

double estimate_ms(const GatherWeightPlan& plan, const Problem& problem, const Device& device) {
  const GatherWeightTile tile = tile_shape(problem, plan.tile);
  const double m = tile.m() * plan.warps_m, n = tile.n() * plan.warps_n;
  const double pixels = plan.rows * plan.pixels;
  const double multiply = m * n * plan.warps_tap * pixels / 32 / kEfficiency[plan.tile] *
                          (static_cast<double>(accumulator_size(problem.dtype)) / 4);
  const double stage = (m + n * plan.span / plan.pixels) * pixels / 32 * kStageCost;
  const double cycles = std::max((multiply + stage) / 4, kStageLatency);
  const double stages = static_cast<double>(plan.blocks) * ceil_div(problem.batch * problem.axis[0].input, plan.rows) *
                        ceil_div(problem.axis[1].input, plan.pixels);
  const double memory = static_cast<double>(problem.bytes()) / device.bandwidth;
  return 1e3 * std::max(kMeasuredOverCounted * stages * cycles / (kClock * device.multiprocessors), memory);
}

void choose_splits(GatherWeightPlan& plan, const Problem& problem, const Device& device, int64_t& workspace) {
  const int64_t rows = ceil_div(problem.batch * problem.axis[0].input, plan.rows);
  plan.segments = rows * ceil_div(problem.axis[1].input, plan.pixels);
  const int64_t partial = problem.w.numel() * static_cast<int64_t>(accumulator_size(problem.dtype));
  const int64_t wanted = ceil_div(kBlocksPerMultiprocessor * device.multiprocessors, plan.blocks);
  const int64_t most = std::min({wanted, kWorkspaceLimit / partial, ceil_div(plan.segments, kLeastSegments)});
  plan.segments_per_split = std::max<int64_t>(1, ceil_div(plan.segments, std::max<int64_t>(1, most)));
  plan.splits = static_cast<int>(std::max<int64_t>(1, ceil_div(plan.segments, plan.segments_per_split)));
  plan.blocks *= plan.splits;
  workspace = plan.splits > 1 ? plan.splits * partial : 0;
}

// The whole estimate of a tile, once its splits are chosen: the one of its work took all multiprocessors for busy.
double with_splits(GatherWeightPlan& tile, double ms, const Problem& problem, const Device& device,
                   int64_t& workspace_bytes) {
  choose_splits(tile, problem, device, workspace_bytes);
  const double idle = static_cast<double>(device.multiprocessors) /
                      static_cast<double>(std::max<int64_t>(tile.blocks, 1));
  return ms * std::max(1.0, idle) + kLaunchMs;
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
  GatherWeightPlan best;
  double best_ms = -1;
  for (int index = 0; index < kTiles; ++index) {
    for (int warps_m : {1, 2, 4}) {
      for (int warps_n : {1, 2}) {
        GatherWeightPlan plan = candidate_plan(problem, index, warps_m, warps_n);
        Candidate candidate{considered ? "simt family, " + describe(plan, problem.dtype) : "", 0, ""};
        if (plan.shared_bytes > gather_shared_bytes(device)) {
          candidate.refusal = "needs more shared memory than lets two blocks share a multiprocessor";
        } else if (plan.blocks > INT32_MAX / 16) {
          candidate.refusal = "needs more blocks than one grid may have";
        } else {
          candidate.estimate_ms = estimate_ms(plan, problem, device);
          if (best_ms < 0 || candidate.estimate_ms < best_ms) {
            best = plan;
            best_ms = candidate.estimate_ms;
          }
          int64_t workspace_bytes = 0;
          if (considered) {
            candidate.estimate_ms = with_splits(plan, candidate.estimate_ms, problem, device, workspace_bytes);
            candidate.plan = std::make_shared<const Plan>(
                Plan{tile_plan(plan), workspace_bytes, candidate.estimate_ms});
          }
        }
        if (considered) considered->push_back(std::move(candidate));
      }
    }
  }
  if (best_ms < 0)
    throw InvalidArgument(
        "conv_transpose2d: no tile fits this GPU, or the problem needs more blocks than one grid may have");
  int64_t workspace_bytes = 0;
  best_ms = with_splits(best, best_ms, problem, device, workspace_bytes);
  return {tile_plan(best), workspace_bytes, best_ms};
}

}  // namespace deconv
