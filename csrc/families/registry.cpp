#include "families/registry.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <sstream>

#include "core/correlation.h"
#include "families/col2im/planner.h"
#include "families/depthwise/planner.h"
#include "families/igemm_sm80/planner.h"
#include "families/igemm_sm90/planner.h"
#include "families/simt/planner.h"
#include "families/small_channel/planner.h"
#include "lowerings/group_merge/planner.h"
#include "lowerings/sub_pixel/planner.h"

namespace deconv {

bool wants_tf32_answer(const Problem& problem, const Device& device) {
  return problem.dtype == DType::kFloat32 && (device.has_wgmma || device.has_mma) &&
         std::max(problem.in_channels_per_group(), problem.out_channels_per_group()) >= kTensorCoreMinChannels &&
         problem.flops() >= kTf32MinFlops;
}

namespace {

// Whether a plan of the Hopper family is quicker than any of the mma family for sure: not where its warps read tap by
// tap, or a tile is mostly empty.
bool outdoes_mma(const Plan& plan, const Problem& problem) {
  constexpr int64_t kFewChannels = 16;
  const auto* conv = std::get_if<HopperConvPlan>(&plan.tile);
  return conv == nullptr ||
         (conv->source != HopperSource::kIm2col &&
          std::min(problem.in_channels_per_group(), problem.out_channels_per_group()) * conv->merge >= kFewChannels);
}

}  // namespace

double partial_run_bytes(double peak_bandwidth) {
  constexpr double kLess = 3.35e12, kMore = 4.92e12, kAtLess = 231, kAtMore = 62;
  const double share = std::clamp((peak_bandwidth - kLess) / (kMore - kLess), 0.0, 1.0);
  return kAtLess + share * (kAtMore - kAtLess);
}

Plan make_plan(const Problem& problem, const Device& device, const PlannerOptions& options,
               std::vector<Candidate>* considered) {
  const bool is_weight = problem.direction == Direction::kGradWeight;
  std::optional<Plan> best;
  const auto consider = [&](std::optional<Plan> plan) {  // of equals the later one, the more general family
    if (plan && (!best || plan->estimate_ms <= best->estimate_ms)) best = std::move(plan);
  };
  if (options.allows("depthwise")) consider(plan_depthwise(problem, device, options, considered));
  bool has_hopper = false;
  if (is_weight && options.allows("wgrad_sm90")) {
    const auto consider_kernel = [&](const char* name, const auto& planner) {
      if (!options.allows("wgrad_sm90", name)) return;
      std::optional<Plan> plan = planner(problem, device, considered);
      has_hopper |= plan.has_value();
      consider(std::move(plan));
    };
    consider_kernel("rs_nchw", plan_hopper_weight_lines);
    consider_kernel("ss", plan_hopper_weight_tensor);
    consider_kernel("rs_nhwc", plan_hopper_weight_turned);
  }
  if (!is_weight && options.allows("igemm_sm90")) {
    std::optional<Plan> plan = plan_hopper_conv(problem, device, options, considered);
    has_hopper = plan.has_value() && outdoes_mma(*plan, problem);
    consider(std::move(plan));
    const auto consider_kernel = [&](const char* name, const auto& planner) {
      if (options.allows("igemm_sm90", name)) consider(planner(problem, device, considered));
    };
    consider_kernel("stride2", plan_hopper_strided);
    consider_kernel("whole_images", plan_hopper_folded);
    consider_kernel("all_phases", plan_hopper_pictures);
  }
  // Not beside the Hopper family, whose instructions are about twice as fast.
  if (options.allows("igemm_sm80") && !has_hopper) {
    consider(is_weight ? plan_mma_weight(problem, device, considered) : plan_mma_conv(problem, device, considered));
  }
  if (options.allows("col2im")) {
    if (options.allows("col2im", "sm80")) consider(plan_col2im_conv(problem, device, considered));
    if (options.allows("col2im", "sm90")) consider(plan_col2im_hopper(problem, device, considered));
  }
  if (options.allows("small_channel")) consider(plan_narrow_conv(problem, device, considered));
  if (options.allows("sub_pixel")) consider(plan_subpixel(problem, device, options, considered));
  if (is_weight && options.allows("group_merge")) {
    const double best_ms = best ? best->estimate_ms : std::numeric_limits<double>::infinity();
    consider(plan_merged(problem, device, options, best_ms, considered));
  }
  if (options.allows("simt") || !best) {
    consider(is_weight ? plan_gather_weight(problem, device, considered)
                       : plan_gather_conv(problem, device, considered));
  }
  return *best;
}

namespace {

std::string milliseconds(double ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g ms", ms);
  return text;
}

std::string describe_launch(const GatherConvPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << kGatherThreads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.chunk << " channels and up to " << plan.taps_h << 'x' << plan.taps_w
       << " taps a stage, " << (plan.vector_source ? "16-byte" : "scalar") << " loads, "
       << (plan.vector_result ? "16-byte" : "scalar") << " stores";
  return text.str();
}

std::string describe_launch(const GatherWeightPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << 32 * plan.warps_m * plan.warps_n * plan.warps_tap << " threads, "
       << plan.shared_bytes << " bytes of shared memory, " << plan.splits
       << (plan.splits > 1 ? " splits of the pixels, added in order" : " split");
  return text.str();
}

template <class DepthwisePlan>
std::string describe_launch(const DepthwisePlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << plan.threads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.splits
       << (plan.splits > 1 ? " splits of the pixels, added in order" : " split");
  return text.str();
}

std::string describe_launch(const HopperConvPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks "
       << (plan.split > 1 ? "in clusters of " + std::to_string(plan.split) + ' ' : "") << "of "
       << hopper_threads(plan.source, plan.tile) << " threads for " << plan.items << " items, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.halo_slots << " halos of " << plan.halo.n << 'x' << plan.halo.h << 'x'
       << plan.halo.w << " pixels" << (plan.keep_halo ? " kept for all phases" : "") << ", " << plan.weight_slots
       << " stages of weights" << (plan.resident_weights ? " that stay" : "") << ", source by "
       << (plan.source == HopperSource::kTensor       ? "tensor copies"
           : plan.source == HopperSource::kTransposed ? "tensor copies that producer warps transpose"
           : plan.source == HopperSource::kIm2col     ? "producer warps, tap by tap"
                                                      : "producer warps");
  return text.str();
}

std::string describe_launch(const HopperPlanesPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << planes_threads(plan.weights.tile_m, plan.resident)
       << " threads for " << plan.items << " items, " << plan.shared_bytes << " bytes of shared memory, " << plan.rings
       << (plan.rings > 1 ? " rings" : " ring") << " of " << plan.slots << " stages of " << plan.stage_bytes
       << " bytes, source by tensor copies"
       << " of its planes";
  return text.str();
}

std::string describe_launch(const HopperStridedPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << kStridedThreads << " threads for " << plan.items << " items, "
       << plan.shared_bytes << " bytes of shared memory, " << plan.slots << " halos of "
       << kStridedWarpgroups / plan.rings() << 'x' << plan.halo_rows << 'x' << 8 * plan.halo_octets << " pixels"
       << (plan.resident ? " a warpgroup" : "") << ", " << plan.weight_slots << " stages of weights"
       << (plan.resident ? " that stay" : "");
  return text.str();
}

std::string describe_launch(const HopperFoldedPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << kFoldedThreads << " threads in clusters of " << kFoldedCluster
       << " for " << plan.items << " items, " << plan.shared_bytes << " bytes of shared memory, " << plan.slots
       << " stages of " << plan.stage_bytes << " bytes, weights and source by tensor copies as they lie";
  return text.str();
}

std::string describe_launch(const HopperPicturesPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << kPicturesThreads << " threads for " << plan.tiles << " tiles, "
       << plan.shared_bytes << " bytes of shared memory, " << plan.slots << " stages of " << plan.halo_rows << 'x'
       << plan.pitch << " pixels by tensor copies";
  return text.str();
}

std::string describe_launch(const HopperWeightLinesPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << 128 * (plan.tile.warpgroups + 1) << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.stages << " stages of " << plan.stage_bytes << " bytes, " << plan.splits
       << (plan.splits > 1 ? " splits" : " split") << " of the pixels, sums added in order";
  return text.str();
}

std::string describe_copies(const HopperWeightCopies& plan, int warpgroups) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << 128 * (warpgroups + 1) << " threads for " << plan.items
       << " items, " << plan.shared_bytes << " bytes of shared memory, " << plan.slots << " stages of "
       << plan.slot_bytes << " bytes, " << plan.planes << " planes of grad_output, " << plan.splits
       << (plan.splits > 1 ? " splits of the pixels" : " split") << (plan.sums ? ", sums added in order" : "");
  return text.str();
}

std::string describe_launch(const HopperWeightTensorPlan& plan) { return describe_copies(plan, plan.tile.warpgroups); }
std::string describe_launch(const HopperWeightTurnedPlan& plan) { return describe_copies(plan, plan.tile.warpgroups); }

std::string describe_launch(const MmaConvPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << kMmaThreads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.halo_slots
       << (plan.keep_halos ? " halos kept for all phases, of " : " halos of ") << plan.halo.n << 'x' << plan.halo.h
       << 'x' << plan.halo.w << " pixels of " << plan.row_bytes << " bytes, weights of " << kMmaStages << " turns";
  return text.str();
}

std::string describe_launch(const MmaWeightPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << 32 * plan.warps() << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.y_rows << " pixels of grad_output a step, " << plan.splits
       << (plan.splits > 1 ? " splits of the pixels, added in order" : " split");
  return text.str();
}

std::string describe_launch(const NarrowConvPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << kNarrowThreads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.tile_blocks << " for each of the result's parts, " << plan.chunks
       << " stages of " << plan.units * kNarrowUnitBytes << " bytes of channels, " << plan.rows_h << 'x' << plan.rows_w
       << " source pixels of " << plan.planes_h * plan.planes_w << " planes";
  return text.str();
}

std::string describe_launch(const Col2imConvPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << col2im_threads(plan.parts) << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.segments << 'x' << plan.strips << " segments of an image in "
       << plan.steps << " steps, " << plan.chunks << " stages of a step";
  return text.str();
}

std::string describe_launch(const Col2imHopperPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << kCol2imHopperThreads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.segments << 'x' << plan.strips << " segments of an image in "
       << plan.steps << " steps, " << plan.chunks << " stages of a step";
  return text.str();
}

// Of any plan inside.
std::string describe_launch(const SubpixelPlan& plan);
std::string describe_launch(const MergedPlan& plan);

const char* family(const GatherConvPlan&) { return "simt"; }
const char* family(const GatherWeightPlan&) { return "simt"; }
const char* family(const DepthwiseStripsPlan&) { return "depthwise"; }
const char* family(const DepthwiseBlocksPlan&) { return "depthwise"; }
const char* family(const DepthwisePacksPlan&) { return "depthwise"; }
const char* family(const DepthwiseRowsPlan&) { return "depthwise"; }
const char* family(const HopperConvPlan&) { return "igemm_sm90"; }
const char* family(const HopperPlanesPlan&) { return "igemm_sm90"; }
const char* family(const HopperStridedPlan&) { return "igemm_sm90"; }
const char* family(const HopperFoldedPlan&) { return "igemm_sm90"; }
const char* family(const HopperPicturesPlan&) { return "igemm_sm90"; }
const char* family(const HopperWeightLinesPlan&) { return "wgrad_sm90"; }
const char* family(const HopperWeightTensorPlan&) { return "wgrad_sm90"; }
const char* family(const HopperWeightTurnedPlan&) { return "wgrad_sm90"; }
const char* family(const MmaConvPlan&) { return "igemm_sm80"; }
const char* family(const MmaWeightPlan&) { return "igemm_sm80"; }
const char* family(const NarrowConvPlan&) { return "small_channel"; }
const char* family(const Col2imConvPlan&) { return "col2im"; }
const char* family(const Col2imHopperPlan&) { return "col2im"; }
const char* family(const SubpixelPlan&) { return "sub_pixel"; }
const char* family(const MergedPlan&) { return "group_merge"; }

std::string describe_launch(const Plan& plan) {
  return std::visit([](const auto& tile) { return describe_launch(tile); }, plan.tile);
}

std::string describe_launch(const SubpixelPlan& plan) {
  const bool rewrites = !plan.stores_plain && (!plan.output_in_place || !plan.weight_in_place);
  const char* const own = rewrites ? "operands to blocks and results back by kernels of their own, and between them "
                          : plan.rewrites_bias ? "the bias to blocks by a kernel of its own, then "
                                               : "";
  return own + describe_launch(*plan.inner);
}

std::string describe_launch(const MergedPlan& plan) {
  return describe_launch(*plan.inner) + "; then each group's own weights by a kernel of its own";
}

// How the plan that was chosen by its time compares to the one with the least estimate.
void describe_choice(std::ostream& text, const std::vector<Timing>& timings, const std::string& chosen,
                     const std::string& estimated) {
  const auto ms_of = [&](const std::string& tile) {
    const auto one = std::find_if(timings.begin(), timings.end(), [&](const Timing& t) { return t.tile == tile; });
    return one == timings.end() ? "not timed" : milliseconds(one->ms);
  };
  text << "  autotuned: of " << timings.size() << " candidates timed, " << ms_of(chosen) << "; by the estimates "
       << (estimated == chosen ? "the same" : estimated + ", " + ms_of(estimated)) << '\n';
}

// The quickest candidates of each family, and some that it refused.
void list_candidates(std::ostream& text, std::vector<Candidate> candidates) {
  constexpr int kShown = 5;  // of a family, of either
  const auto family_of = [](const Candidate& candidate) { return candidate.tile.substr(0, candidate.tile.find(',')); };
  auto begin = candidates.begin();
  while (begin != candidates.end()) {
    const std::string name = family_of(*begin);
    const auto is_same = [&](const Candidate& candidate) { return family_of(candidate) == name; };
    const auto end = std::stable_partition(begin, candidates.end(), is_same);
    const auto refused = std::stable_partition(begin, end, [](const Candidate& one) { return one.refusal.empty(); });
    std::stable_sort(begin, refused, [](const auto& a, const auto& b) { return a.estimate_ms < b.estimate_ms; });
    for (auto one = begin; one != refused && one - begin < kShown; ++one) {
      text << "    " << one->tile << ": about " << milliseconds(one->estimate_ms) << '\n';
    }
    if (refused - begin > kShown) text << "    " << name << ": " << refused - begin - kShown << " more, slower\n";
    for (auto one = refused; one != end && one - refused < kShown; ++one) {
      text << "    " << one->tile << ": refused, " << one->refusal << '\n';
    }
    if (end - refused > kShown) text << "    " << name << ": " << end - refused - kShown << " more refused\n";
    begin = end;
  }
}

}  // namespace

std::string describe(const Plan& plan, DType dtype) {
  return std::visit([&](const auto& tile) { return std::string(family(tile)) + " family, " + describe(tile, dtype); },
                    plan.tile);
}

std::string explain(const Problem& problem, const Device& device, const PlannerOptions& options,
                    const TunedPlan* tuned) {
  std::vector<Candidate> considered;
  const Plan estimated = make_plan(problem, device, options, &considered);
  const Plan& plan = tuned ? tuned->plan : estimated;
  std::ostringstream text;
  text << problem.describe() << '\n'
       << "  result: " << name(problem.result_layout) << "; " << problem.flops() * 1e-9 << " GFLOP dense, "
       << static_cast<double>(problem.bytes()) * 1e-9 << " GB read and written once\n"
       << "  device: " << device.name << ", " << device.multiprocessors << " multiprocessors\n";
  text << "  plan: " << describe(plan, problem.dtype) << ", about " << milliseconds(plan.estimate_ms) << '\n';
  if (tuned) {
    describe_choice(text, tuned->timings, describe(plan, problem.dtype), describe(estimated, problem.dtype));
  }
  std::visit(
      [&](const auto& tile) {
        if (options.restricted()) {
          text << "  kernels: " << kKernelsVariable << " is " << options.describe()
               << (options.allows(family(tile)) ? "" : "; refused, so simt serves") << '\n';
        }
        text << "  launch: " << describe_launch(tile) << '\n';
      },
      plan.tile);
  text << "  workspace: " << plan.workspace_bytes << " bytes\n  considered:\n";
  list_candidates(text, considered);
  if (tuned) {
    text << "  timed:\n";
    for (const Timing& one : tuned->timings) {
      text << "    " << one.tile << ": " << milliseconds(one.ms) << ", about " << milliseconds(one.estimate_ms) << '\n';
    }
  }
  return text.str();
}

}  // namespace deconv
