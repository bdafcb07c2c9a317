// Candidates of igemm_sm90/conv.cuh.
#include "families/igemm_sm90/planner.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "families/igemm_sm90/conv_tile.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int64_t kMostMerged = 128;         // channels
constexpr int64_t kMostIm2colChannels = 8;   // of the source; more fill rows by themselves
constexpr int64_t kMostIm2colExtent = 1 << 14;

// Few channels may leave most of a tile empty, but not in three TF32 products: sums of so few are more exact without.
bool takes_few_channels(const Problem& problem) {
  return problem.groups == 1 && (problem.dtype != DType::kFloat32 || problem.allow_tf32);
}

// How many neighbouring groups may count as one: with enough channels for a tile, and not many more.
std::vector<int64_t> merges_of(const Problem& problem) {
  if (takes_few_channels(problem)) return {1};
  const auto [least, most] = std::minmax({problem.in_channels_per_group(), problem.out_channels_per_group()});
  std::vector<int64_t> merges;
  for (int64_t count = 1; count <= problem.groups && (count == 1 || count * most <= kMostMerged); ++count) {
    if (problem.groups % count == 0 && count * least >= kSm90MinChannels) merges.push_back(count);
  }
  return merges;
}

// Whether the taps of a problem can count as channels: few source channels, no phases, taps evenly spaced in memory.
bool fits_im2col(const Problem& problem) {
  if (problem.blocks) return false;
  const Correlation c = correlation(problem);
  const AxisGeometry axis[2] = {geometry(problem, 0), geometry(problem, 1)};
  const int64_t taps = static_cast<int64_t>(axis[0].kernel) * axis[1].kernel;
  if (axis[0].result_step() > 1 || axis[1].result_step() > 1) return false;
  if (c.source_channels > kMostIm2colChannels || c.source_channels * taps > kSm90MostIm2col) return false;
  if (c.result_channels < kSm90MinChannels && !takes_few_channels(problem)) return false;
  const bool lies_in_order = axis[0].kernel == 1 || axis[1].kernel == 1 ||
                             problem.w.stride[2] == axis[1].kernel * problem.w.stride[3];
  if (!lies_in_order) return false;
  // Bytes of a tile's images are counted in 32 bits. Of pixels' coordinates, 14 bits are an image's, a tap is less
  // away, and a tile reaches no further beyond it.
  int64_t elements = c.source_channels * c.source.stride[1] +
                     std::min<int64_t>(problem.batch, kMostIm2colImages) * c.source.stride[0];
  for (int a = 0; a < 2; ++a) {
    const int64_t shift = std::max<int64_t>(axis[a].padding, int64_t{axis[a].kernel - 1} * axis[a].dilation);
    const int64_t end = (axis[a].result_size + int64_t{kMostIm2colPixels}) * axis[a].source_step();
    if (std::max({shift, int64_t{axis[a].source_size}, end}) >= kMostIm2colExtent) return false;
    elements += (axis[a].source_size + shift) * c.source.stride[2 + a];
  }
  return elements * element_size(problem.dtype) <= INT32_MAX;
}

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_wgmma) return "needs a Hopper GPU and a build for sm_90a";
  if (const std::string why = tensor_core_refusal(problem, 1, kSm90MaxKernel, kSm90MaxStride); !why.empty()) {
    return why;
  }
  if (problem.blocks && problem.dtype == DType::kFloat32 && !problem.allow_tf32) {
    return "stores no blocks in strict float32";  // what is not finite is computed again, at its place (repair.cuh)
  }
  if (!merges_of(problem).empty() || fits_im2col(problem)) return "";
  return "takes at least " + std::to_string(kSm90MinChannels) +
         " channels a group on either side, or a number that divides the groups to have " +
         std::to_string(kSm90MinChannels) + " to " + std::to_string(kMostMerged) + " together; or, without phases, " +
         std::to_string(kSm90MinChannels) + " result channels from up to " + std::to_string(kMostIm2colChannels) +
         " whose taps are at most " + std::to_string(kSm90MostIm2col) +
         "; fewer without groups and not in strict float32";
}

// Whether tiles of groups of columns may write whole sectors where they otherwise would not.
bool writes_parts_of_sectors(const ConvLayer& l, Sm90Tile tile) {
  if (!sm90_writes_whole_sectors(tile) || l.c.result.stride[1] == 1 || l.c.result.stride[3] != 1) return false;
  const int step = l.w.result_step();
  return step == tile.phases ? sector_unit(l) * l.element < 32
                             : step > tile.phases && step == l.w.phases() && sm90_joins_phases(tile);
}

// Whether neighbouring columns may share a warpgroup's rows: their taps must overlap.
bool folds(const ConvLayer& l) {
  return !l.problem.blocks && l.c.result_channels <= kSm90TileM / 2 && l.w.source_step() == 1 &&
         l.w.result_step() == 1 && l.w.dilation == 1;
}

// Whether producer warps may bring the columns of all planes of the width together: as neighbours in memory.
bool may_bring_together(const ConvLayer& l) {
  return l.source == Sm90Source::kWarps && l.planes_w > 1 && l.c.source.stride[3] == 1 && l.c.source.stride[1] != 1;
}

bool may_copy_results(const ConvLayer& l, Sm90Tile tile) {
  if (l.problem.blocks) return false;
  if (l.c.result.stride[1] == 1) return l.element == 2 || l.problem.allow_tf32;
  return l.c.result.stride[3] == 1 && sm90_may_copy_columns(l.element, tile, Sm90Source::kTensor);
}
// Contiguous ones only in turns, which hide their stores.
bool may_be_flat(const ConvLayer& l, Sm90Tile tile, Second second) {
  if (l.c.result.stride[1] == 1) return may_copy_results(l, tile);
  return second == Second::kItems && sm90_stores_flat(tile) && l.c.result.stride[3] == 1 && l.w.result_step() == 1 &&
         (l.element == 2 || l.problem.allow_tf32);
}

// What may serve, but for how results leave and how many blocks share an item.
std::vector<TileChoice> choices_of(const ConvLayer& l, Sm90Tile tile) {
  std::vector<TileChoice> choices;
  if (tile.phases > 1 && l.w.phases() < tile.phases) return choices;
  if (tile.fold > 1 && !folds(l)) return choices;
  if (l.by_im2col() && !sm90_has_im2col(tile)) return choices;
  const auto add = [&](Sm90Inner inner, Second second, int lines, bool whole_sectors, bool repack) {
    if (second == Second::kChannels && l.c.result_channels <= kSm90TileM) return;  // one warpgroup has all
    TileChoice choice{tile, inner, second, lines, whole_sectors, repack};
    choices.push_back(choice);
    choice.together = true;
    if (!repack && may_bring_together(l)) choices.push_back(choice);
  };
  for (const bool repack : {false, true}) {
    if (repack && l.reads_in_place()) break;
    for (const Second second : {Second::kPixels, Second::kGroups, Second::kChannels, Second::kItems}) {
      add(Sm90Inner::kHeight, second, 1, false, repack);
      add(Sm90Inner::kBatch, second, 1, false, repack);
    }
    if (tile.fold > 1) continue;
    for (const Second second : {Second::kGroups, Second::kChannels, Second::kItems}) {
      if (may_be_flat(l, tile, second)) add(Sm90Inner::kWidth, second, kFlat, false, repack);
      for (const int lines : {1, 2, 4}) {
        add(Sm90Inner::kWidth, second, lines, false, repack);
        if (writes_parts_of_sectors(l, tile)) add(Sm90Inner::kWidth, second, lines, true, repack);
      }
    }
  }
  return choices;
}

// False if the plan uses a planner option that is switched off; ConvLayer heeds raw_boxes and weights_in_place.
bool allows(const PlannerOptions& options, const IgemmSm90Plan& plan) {
  const std::pair<const char*, bool> used[] = {
      {"ping_pong", plan.in_turns},
      {"cluster_split", plan.split > 1},
      {"tma_store", plan.results == Sm90Results::kCopied},
      {"merged_groups", plan.merge > 1},
      {"repack", plan.repack},
      {"source_phases_together", plan.source == Sm90Source::kWarps && plan.halo_planes > 1},
      {"im2col", plan.source == Sm90Source::kIm2col},
      {"flat_lines", plan.flat},
      {"folded_columns", plan.tile.fold > 1},
      {"whole_sectors", plan.whole_sectors},
      {"two_phases", plan.tile.phases > 1},
      {"image_groups", plan.inner == Sm90Inner::kBatch},
      {"wide_tiles", plan.tile_m == 128},
      {"odd_tiles", (plan.tile.groups & (plan.tile.groups - 1)) != 0},
  };
  return std::none_of(std::begin(used), std::end(used),
                      [&](const auto& option) { return option.second && !options.allows("igemm_sm90", option.first); });
}

}  // namespace

std::string describe(const IgemmSm90Plan& plan, DType) {
  std::ostringstream text;
  text << plan.tile_m << " channels x (" << plan.pixels.n << " images, " << plan.pixels.h << " rows, " << plan.pixels.w
       << " columns" << (plan.tile.phases > 1 ? ", 2 phases" : "") << ") in " << (plan.tile.fold > 1 ? "2x" : "")
       << 8 * plan.tile.groups << " pixels, groups of "
       << (plan.inner == Sm90Inner::kHeight  ? "rows"
           : plan.inner == Sm90Inner::kBatch ? "images"
           : plan.flat                       ? "columns of flat lines"
                                             : "columns")
       << (plan.row_phases > plan.tile.phases ? ", rows of all phases"
           : plan.whole_sectors               ? ", whole sectors"
                                              : "")
       << (plan.in_turns ? ", warpgroups in turns" : "")
       << (plan.results == Sm90Results::kCopied ? ", results copied" : "")
       << (plan.weights != Sm90Weights::kPacked ? ", weights in place" : "")
       << (plan.merge > 1 ? ", " + std::to_string(plan.merge) + " groups merged" : "")
       << (plan.source == Sm90Source::kWarps && plan.halo_planes > 1 ? ", planes together" : "")
       << (plan.source == Sm90Source::kIm2col ? ", im2col" : "") << (plan.repack ? ", source repacked" : "")
       << (plan.to_blocks ? ", blocks stored where they belong" : "")
       << (plan.split > 1 ? ", sums of " + std::to_string(plan.split) + " blocks" : "")
       << (plan.parts == 2 ? ", three TF32 products" : "");
  return text.str();
}

Problem im2col_problem(const Problem& problem) {
  Problem p = problem;
  const bool forward = problem.direction == Direction::kForward;
  (forward ? p.in_channels : p.out_channels) *= problem.axis[0].kernel * problem.axis[1].kernel;
  for (Axis& axis : p.axis) {
    const int64_t result = forward ? axis.output : axis.input;
    axis = {result, result, 1, 1, 0, 0, 1};
  }
  return p;
}

bool sm90_may_pack(int64_t packed_bytes, int64_t weight_bytes) {
  constexpr int64_t kMostPadding = 2;  // times
  return packed_bytes <= std::max(kWorkspaceLimit, kMostPadding * weight_bytes);
}

int sm90_blocks_unit(const Problem& problem, int most) {
  const ResultBlocks& blocks = *problem.blocks;
  int64_t unit = most;
  for (const int64_t elements : {blocks.width, blocks.shift_w, blocks.size_w, blocks.stride_n, blocks.stride_c,
                                 blocks.stride_h, correlation(problem).result_channels}) {
    while (elements % unit != 0) unit /= 2;
  }
  return static_cast<int>(unit);
}

int sm90_vector_result(const Problem& problem, const IgemmSm90Plan& plan) {
  const Correlation c = correlation(problem);
  const bool is_short = element_size(problem.dtype) == 2;
  if (problem.blocks) return sm90_blocks_unit(problem, is_short ? 4 : 1);
  if (c.result.stride[1] == 1) return is_short && packs_along_channels(c.result, c.result_channels, 4) ? 4 : 1;
  if (c.result.stride[3] != 1 || geometry(problem, 1).result_step() != plan.tile.phases) return 1;
  const auto fits = [&](int count) {
    return c.result.size[3] % count == 0 && c.result.stride[0] % count == 0 && c.result.stride[1] % count == 0 &&
           c.result.stride[2] % count == 0;
  };
  if (plan.flat && (plan.halo.w % 2 != 0 || plan.pixels.w % 2 != 0)) return 1;
  if (plan.inner == Sm90Inner::kWidth) return fits(2 * plan.tile.phases) ? 2 * plan.tile.phases : fits(2) ? 2 : 1;
  // Pairs of columns must not lie in two lines.
  const bool whole = plan.tile.phases * plan.tile.fold == 2 || plan.line_groups % 2 == 0;
  return is_short && whole && fits(2) ? 2 : 1;
}

std::optional<Plan> plan_igemm_sm90(const Problem& problem, const Device& device, const PlannerOptions& options,
                                    std::vector<Candidate>* considered) {
  if (const std::string why = refusal(problem, device); !why.empty()) {
    if (considered) considered->push_back({"igemm_sm90 family", 0, why});
    return std::nullopt;
  }
  const bool allows_all = options.allows_all_options("igemm_sm90");
  std::optional<Plan> best;
  const auto consider = [&](const ConvLayer& layer, TileChoice choice) {
    for (const Sm90Results results : {Sm90Results::kStored, Sm90Results::kCopied}) {
      if (results == Sm90Results::kCopied && !may_copy_results(layer, choice.tile)) break;
      choice.results = results;
      for (choice.split = 1; choice.split <= kSm90MostSplit; choice.split *= 2) {
        const std::optional<IgemmSm90Plan> plan = plan_tile(layer, choice);
        if (!plan) break;
        if (!allows_all && !allows(options, *plan)) continue;
        const int64_t workspace_bytes = plan->packed_bytes + plan->repacked_bytes + kSm90FlagBytes;
        consider_plan(best, "igemm_sm90 family", *plan, workspace_bytes, estimate_ms(layer, *plan), problem.dtype,
                      considered);
        if (plan->items > most_clusters(device, 2 * choice.split)) break;
      }
    }
  };
  const auto consider_layer = [&](const ConvLayer& layer) {
    const bool split = problem.dtype == DType::kFloat32 && !problem.allow_tf32;
    const auto* begin = split ? std::begin(kSm90TilesSplit) : std::begin(kSm90Tiles);
    const auto* end = split ? std::end(kSm90TilesSplit) : std::end(kSm90Tiles);
    for (const auto* tile = begin; tile != end; ++tile) {
      for (const TileChoice& choice : choices_of(layer, *tile)) consider(layer, choice);
    }
  };
  const bool raw_boxes = options.allows("igemm_sm90", "raw_boxes");
  const bool in_place = options.allows("igemm_sm90", "weights_in_place");
  for (const int64_t merge : merges_of(problem)) {
    if (!problem.blocks || merge == 1) consider_layer({problem, merge, device, raw_boxes, in_place});
  }
  if (fits_im2col(problem)) consider_layer({im2col_problem(problem), 1, device, raw_boxes, in_place, true});
  if (!best && considered)
    considered->push_back(
        {"igemm_sm90 family", 0, "no tile fits: its halo in shared memory, its packed weights in their bound"});
  return best;
}

}  // namespace deconv