// The record of igemm_sm90.
#include <sstream>

#include "families/igemm_sm90/planner.h"
#include "planner/plan.h"

namespace deconv {
namespace {

// Not where warps read tap by tap, or a tile is mostly empty.
bool outdoes_mma(const Plan& plan, const Problem& problem) {
  constexpr int64_t kFewChannels = 16;
  const IgemmSm90Plan& conv = *plan.get_if<IgemmSm90Plan>();
  return conv.source != Sm90Source::kIm2col &&
         std::min(problem.in_channels_per_group(), problem.out_channels_per_group()) * conv.merge >= kFewChannels;
}

void plan(Search& search) {
  if (search.problem.direction == Direction::kGradWeight) return;
  std::optional<Plan> plan = plan_igemm_sm90(search.problem, search.device, search.options, search.considered);
  search.outdoes_mma = plan && outdoes_mma(*plan, search.problem);
  search.consider(std::move(plan));
  const auto consider = [&](const char* kernel, const auto& planner) {
    if (!search.options.allows("igemm_sm90", kernel)) return;
    search.consider(planner(search.problem, search.device, search.considered));
  };
  consider("stride2", plan_stride2);
  consider("whole_images", plan_whole_images);
  consider("all_phases", plan_all_phases);
}

}  // namespace

std::string describe_launch(const IgemmSm90Plan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks "
       << (plan.split > 1 ? "in clusters of " + std::to_string(plan.split) + ' ' : "") << "of "
       << sm90_threads(plan.source, plan.tile) << " threads for " << plan.items << " items, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.halo_slots << " halos of " << plan.halo.n << 'x' << plan.halo.h << 'x'
       << plan.halo.w << " pixels" << (plan.keep_halo ? " kept for all phases" : "") << ", " << plan.weight_slots
       << " stages of weights" << (plan.resident_weights ? " that stay" : "") << ", source by "
       << (plan.source == Sm90Source::kTensor       ? "tensor copies"
           : plan.source == Sm90Source::kTransposed ? "tensor copies that producer warps transpose"
           : plan.source == Sm90Source::kIm2col     ? "producer warps, tap by tap"
                                                    : "producer warps");
  return text.str();
}

std::string describe_launch(const OneTapPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << one_tap_threads(plan.weights.tile_m, plan.resident)
       << " threads for " << plan.items << " items, " << plan.shared_bytes << " bytes of shared memory, " << plan.rings
       << (plan.rings > 1 ? " rings" : " ring") << " of " << plan.slots << " stages of " << plan.stage_bytes
       << " bytes, source by tensor copies"
       << " of its planes";
  return text.str();
}

std::string describe_launch(const Stride2Plan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << kStride2Threads << " threads for " << plan.items << " items, "
       << plan.shared_bytes << " bytes of shared memory, " << plan.slots << " halos of "
       << kStride2Warpgroups / plan.rings() << 'x' << plan.halo_rows << 'x' << 8 * plan.halo_octets << " pixels"
       << (plan.resident ? " a warpgroup" : "") << ", " << plan.weight_slots << " stages of weights"
       << (plan.resident ? " that stay" : "");
  return text.str();
}

std::string describe_launch(const WholeImagesPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << kWholeImagesThreads << " threads in clusters of "
       << kWholeImagesCluster << " for " << plan.items << " items, " << plan.shared_bytes << " bytes of shared memory, "
       << plan.slots << " stages of " << plan.stage_bytes << " bytes, weights and source by tensor copies as they lie";
  return text.str();
}

std::string describe_launch(const AllPhasesPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << kAllPhasesThreads << " threads for " << plan.tiles << " tiles, "
       << plan.shared_bytes << " bytes of shared memory, " << plan.slots << " stages of " << plan.halo_rows << 'x'
       << plan.pitch << " pixels by tensor copies";
  return text.str();
}

Family igemm_sm90_family() {
  return {"igemm_sm90",
          {"1tap",          "stride2",    "all_phases",     "whole_images",  "ping_pong",
           "cluster_split", "tma_store",  "merged_groups",  "repack",        "source_phases_together",
           "im2col",        "flat_lines", "folded_columns", "whole_sectors", "two_phases",
           "image_groups",  "raw_boxes",  "wide_tiles",     "odd_tiles",     "weights_in_place"},
          plan};
}

}  // namespace deconv
