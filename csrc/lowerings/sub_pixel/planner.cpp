#include "lowerings/sub_pixel/planner.h"

#include <algorithm>
#include <vector>

#include "families/igemm_sm90/planner.h"
#include "lowerings/sub_pixel/sub_pixel.h"

namespace deconv {
namespace {

// ms to write a tensor in blocks, or back; fitted to timings on an H200. The first launch waits for the kernels before
// it, further ones start early.
constexpr double kLaunchMs = 2.5e-3, kFurtherLaunchMs = 1e-3, kBackMs = 5e-3;
double blocks_ms(const Blocks& blocks, DType dtype) {
  constexpr double kMsPerByte = 0.5e-9, kAlone = 2.4;  // times as long, element by element
  const int64_t element = element_size(dtype);
  const int unit = sub_pixel_unit(blocks, element);
  const double apart = unit == kSubPixelAlignment ? 1 : std::max<double>(1, kAlone * element / unit);
  return blocks.numel() * element * kMsPerByte * apart;
}
// More ms to write back rows that share sectors, if that is element by element, or if caches cannot hold a sector until
// both of its parts are written.
double rows_ms(const Blocks& blocks, DType dtype) {
  constexpr double kMsPerRow = 3e-7;
  constexpr int64_t kCached = 32 << 20;
  const int64_t element = element_size(dtype);
  const std::array<int64_t, 4>& size = blocks.plain.size;
  const bool shared = blocks.plain.stride[3] == 1 && size[3] * element % kSectorBytes != 0;
  const bool apart = sub_pixel_unit(blocks, element) == element || blocks.numel() * element > kCached;
  return shared && apart ? size[0] * size[1] * size[2] * kMsPerRow : 0;
}

// True if the inner plan may store the output's blocks in place.
bool may_store_plain(const Problem& problem) {
  return problem.direction == Direction::kForward && !sub_pixel_output(problem).in_place() && !has_columns(problem) &&
         sub_pixel_result_blocks(problem);
}
// True if blocks are better than phases for layers that keep several taps.
bool is_worth_blocks(const Problem& problem) {
  const ResultBlocks blocks = *sub_pixel_result_blocks(problem);
  return problem.out_channels_per_group() < kMostSubPixelChannels ||
         (blocks.line == 1 && blocks.width >= kLeastSubPixelRow);
}

}  // namespace

std::optional<Plan> plan_sub_pixel(const Problem& problem, const Device& device, const PlannerOptions& options,
                                   std::vector<Candidate>* considered) {
  const auto refuse = [&](const std::string& why) {
    if (!why.empty() && considered) considered->push_back({"sub_pixel family", 0, why});
    return !why.empty();
  };
  if (refuse(sub_pixel_refusal(problem))) return std::nullopt;
  if (refuse(device.has_wgmma || device.has_mma ? "" : "needs tensor cores")) return std::nullopt;
  const bool forward = problem.direction == Direction::kForward;
  const bool is_weight = problem.direction == Direction::kGradWeight;
  const Blocks output = sub_pixel_output(problem), weight = sub_pixel_weight(problem), bias = sub_pixel_bias(problem);
  const auto bytes = [&](const Blocks& blocks) {
    return round_up(blocks.numel() * element_size(problem.dtype), kWorkspaceRoom);
  };
  std::optional<Plan> best;
  const auto consider_inner = [&](const Plan& inner, bool stores_plain) {
    SubPixelPlan plan;
    plan.inner = std::make_shared<const Plan>(inner);
    plan.columns = has_columns(problem);
    plan.output_in_place = output.in_place();
    plan.weight_in_place = weight.in_place();
    plan.stores_plain = stores_plain;
    const bool to_output = !plan.output_in_place && !stores_plain, to_weight = !plan.weight_in_place && !stores_plain;
    plan.rewrites_bias = problem.has_bias && !stores_plain;
    plan.weight_at = plan.output_at + (to_output ? bytes(output) : 0);
    plan.bias_at = plan.weight_at + (to_weight ? bytes(weight) : 0);
    plan.inner_at = plan.bias_at + (forward && !stores_plain ? bytes(bias) : 0);
    double ms = inner.estimate_ms;
    double launch_ms = kLaunchMs;  // of the next kernel before the inner plan's
    const auto rewrite_before = [&](const Blocks& blocks) {
      ms += launch_ms + blocks_ms(blocks, problem.dtype);
      launch_ms = kFurtherLaunchMs;
    };
    if (to_output && !forward) rewrite_before(output);
    if (to_weight && !is_weight) rewrite_before(weight);
    if (plan.rewrites_bias) rewrite_before(bias);
    if (to_output && forward) ms += kBackMs + blocks_ms(output, problem.dtype) + rows_ms(output, problem.dtype);
    if (to_weight && is_weight) ms += kLaunchMs + blocks_ms(weight, problem.dtype);
    consider_plan(best, "sub_pixel family", plan, plan.inner_at + inner.workspace_bytes, ms, problem.dtype, considered);
  };
  const PlannerOptions within = options.excluding("sub_pixel").excluding("group_merge");
  if (!refuse(sub_pixel_rewriting_refusal(problem))) {
    consider_inner(make_plan(sub_pixel_problem(problem), device, within), false);
  }
  if (within.allows("igemm_sm90") && may_store_plain(problem)) {
    const Problem stored = sub_pixel_stored_problem(problem);
    const auto consider_planner = [&](const auto& planner) {
      std::vector<Candidate> tiles;
      const std::optional<Plan> quickest = planner(stored, device, considered ? &tiles : nullptr);
      if (quickest && !considered) consider_inner(*quickest, true);
      for (const Candidate& tile : tiles) {
        if (tile.plan) consider_inner(*tile.plan, true);
      }
    };
    if (within.allows("igemm_sm90", "1tap")) consider_planner(plan_one_tap);
    if (is_worth_blocks(problem)) {
      consider_planner([&](const Problem& blocks, const Device& gpu, std::vector<Candidate>* tiles) {
        return plan_igemm_sm90(blocks, gpu, within, tiles);
      });
    }
  }
  return best;
}

std::string describe(const SubPixelPlan& plan, DType dtype) {
  return (plan.columns ? "images of one pixel as columns, " : "the output in blocks of the stride, ") +
         describe(*plan.inner, dtype);
}

}  // namespace deconv
