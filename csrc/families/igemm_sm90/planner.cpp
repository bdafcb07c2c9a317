// Tiles of the Hopper family (kernels/hopper/conv.cuh).
#include "families/igemm_sm90/planner.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "core/correlation.h"
#include "core/tap_span.h"
#include "lowerings/repack.h"
#include "planner/cost_model.h"
#include "planner/plan.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int64_t kMostMerged = 128;  // channels
constexpr int kMostWeightSlots = 12, kLeastWeightSlots = 3;
constexpr int kMostHaloSlots = 8;
constexpr int kLeastRawSlots = 3, kLeastFewRawSlots = 2, kMostRawSlots = 8;
constexpr int kWideRawWeightSlots = 4;  // beside wide raw boxes at least, or as many as without
constexpr int kShortRow = 256;  // bytes of a row that four lanes store; longer ones eight
constexpr int kMostResident = 150;  // stages of weights that may stay
// im2col reads the source again for each tap, so L1 should hold it.
constexpr int64_t kIm2colSharedBytes = 160 << 10;
constexpr int64_t kMostIm2colChannels = 8;  // of the source; more fill rows by themselves
constexpr int kMostIm2colImages = 32, kMostIm2colPixels = 256;  // of a tile, along an axis
constexpr int64_t kMostIm2colExtent = 1 << 14;

// Cycles of a multiprocessor at kClockSm90, fitted to 159,958 timings of 268 layers on an H100 and 5,383 of 34 on an
// H200; those of contiguous sources and results in 16 bits and TF32 later to 90,782 on H100s and 90,869 on an H200.
constexpr double kClockSm90 = 1.7e9;
// Of a result's element, by how it lies to its neighbours.
struct StoreCosts {
  double channels, channels_lines, channels_phases;  // channels adjacent; more, in several lines, with two phases
  double runs, runs_lines;    // columns adjacent, groups of columns; more, in several lines
  double rows, rows_row;      // the same in whole sectors; more, of a row of columns
  double rows_phases;         // more, in rows of all phases
  double staged, staged_row;  // columns adjacent, other groups; more, of a row of columns
  double images;              // more, in groups of images
  // More, where rows begin within a sector, with one phase of the width and with two, of a row of columns.
  double ragged_runs, ragged_runs_phases, ragged_runs_row;
  double ragged_staged, ragged_staged_phases, ragged_staged_row;
  double odd_runs, odd_staged;                     // more, where neighbours may not be stored at once
  double apart, ragged_apart, apart_runs;          // columns apart; more, in runs of two phases
  double gaps;                                     // times as much for them, with a stride above 2
  double turned, rs_nhwc_runs, rs_nhwc_staged;  // times as much in turns: channels adjacent, groups of columns, others
  double odd_channels;  // more, where neighbours may not be stored at once
  double in_parts;  // more, where tiles side by side meet at no multiple of 16 bytes
  double whole_rows;  // times as much of what ragged rows cost more, where a tile has whole ones
  // Pixels that are blocks: more for a store, by how many neighbours it takes, and for each sector that is written in
  // parts. Fitted to some 60,000 timings of 60 layers on an H100 and an H200.
  double blocks = 0, blocks_store = 0, blocks_sector = 0;
};
// Where results leave by tensor copies.
struct CopyCosts {
  double element, phases;  // of a result's element; more, with phases
  double column;  // of an element, with columns adjacent (16 bits)
  double line;  // of a line of a warpgroup
  double wide;  // times as much for items and results of 128 channels
  double stage_in_turns;  // of a stage besides
  double together;  // of the lesser of products and halos, what the other does not hide, not in turns
};
struct Costs {
  double product;  // of a stage, for each column of the block and 32 bytes of channels
  double stage, stage_in_turns;  // of a stage besides
  double tensor, transposed, warps;  // of a pixel of a halo and chunk, by source
  double im2col;  // of the warps' reading kSm90Im2colAhead places of 32 pixels each
  double transposed_line, warps_line;  // more, of a line of a halo and chunk
  double transposed_start, warps_start;  // of a launch, until its first halos are written
  double weights_way;  // of a stage of weights on its way into the ring, beside those ahead of it
  // Of a pixel that warps bring from contiguous lines: times as much where all planes come together; more for each 4
  // bytes that neighbouring columns of a plane are further apart than kNearBytes, up to a sector.
  double planes_together, far_columns;
  double few_warps;  // how much more, where accumulators leave few warps to write it
  bool overlapped;  // products and halos hide each other in part
  double bytes;  // that TMA brings in a cycle, at most
  double item;  // of an item and phase group
  double turn;  // more, in turns
  double wide;  // times as much for items and results of 128 channels
  double memory;  // part of the time for moving all tensors that nothing hides
  double launch_ms;
  StoreCosts store;
  CopyCosts copy;
};
constexpr StoreCosts kStoresShort{0.0499, 0.0139,  0.0159, 0.0463,  0.0581, 0.0946, 5.2,  0.117, 0.0638, 0.0636, 0.0968,
                                  0.0163, 0.00353, 0.616,  0.00359, 0.0382, 1.32,   0.15, 0.253, 0.175,  0.105,  0.144,
                                  1.08,   2.36,    3.29,   1.2,     0.111,  0.235,  1,    0.06,  0.28,   0.12};
// Of copies: fitted to 109,187 timings of 132 layers on an H200, channels_last; `column` is
// set by hand, so that kb2_02, kb2_36 and sam_up2 take them and unet_up1 does not, as timed.
constexpr CopyCosts kCopiesShort{0.0271, 0.006, 0.025, 112, 0.845, 39.3, 0.122};
constexpr Costs kCostsShort{0.75, 138,   71.9, 2.97, 2.45,  12.8,    1140,         206,
                            235,  15000, 6550, 1740, 0.903, 0.303,   1.59,         true,
                            34.5, 1570,  1070, 1.15, 0.235, 0.00292, kStoresShort, kCopiesShort};
constexpr StoreCosts kStoresTf32{0.111, 0.0173, 0.035, 0.0425,  0.142, 0.0121, 33.8,  0.107,   0.187, 0.00882, 0.0778,
                                 0.193, 0.0707, 0.45,  0.00201, 0.38,  1.81,   0.28,  0.00203, 0.159, 0.162,   0.334,
                                 1.03,  1.63,   2.91,  1.3,     0,     0.314,  0.132, 0.2,     0,     0.2};
constexpr CopyCosts kCopiesTf32{0.172, 0.00136, 0, 88.4, 0.735, 82.3, 0.22};
constexpr Costs kCostsTf32{0.825, 132,  44.6, 2.19, 6.48, 12.8, 1510, 67.4, 142,   7590,    2960,        1610,
                           1.01,  0.47, 1.42, true, 37.8, 1150, 1520, 1.07, 0.269, 0.00265, kStoresTf32, kCopiesTf32};
constexpr StoreCosts kStoresSplit{0.0313, 0.0546, 0.0173, 0.0687, 0.0765, 0.072,  7.59, 0.105, 0.148, 0,
                                  0.112,  0.221,  0,      2.91,   0.176,  0.0491, 0,    0.142, 0,     0.132,
                                  0.127,  0.31,   1.07,   0.867,  0.804,  1.01,   0,    0,     1};
constexpr Costs kCostsSplit{2.53, 150,   218,  5.18, 8.15, 9.97, 2000,    26.8,    69.6,         0, 0, 0, 1.08, 1.69,
                            1.06, false, 35.3, 1920, 1710, 1.06, 0.00103, 0.00528, kStoresSplit, {}};
// Ragged rows of two bytes an element in tiles of folded columns with more groups than this: times as much. By hand, so
// that kb1_71, the only layer that has them, takes as long as measured (1.36 to 1.41 times the estimate without).
constexpr int kWholeImagesGroups = 24;
constexpr double kWholeImagesRagged = 2.9;
// Of the rows of a tile, those that count as leaving parts of sectors: where it writes whole ones but at the ends of
// the result's rows; where it has whole rows, and so the rest of a sector, too.
constexpr double kWholeSectorsRuns = 0.3, kWholeRowsRuns = 0.4;
constexpr double kStoredFlat = 1.05;  // times the cycles of contiguous results in flat lines, by hand, of 99 timings
// Of the first halos that TMA brings, beside which those of the other slots come: times as long, and cycles less. By
// hand, of h200_copied_plans.json and h100_sm90_tiles.json; only seen where the result has one phase.
constexpr double kFillTimes = 2, kFillHidden = 3400;
// Times the cycles of merged groups whose weights stay, where results are contiguous: by hand, of the choices that it
// changes in h200_merged_plans.json.
constexpr double kResidentMerged = 0.88;
constexpr double kNearBytes = 12;
constexpr double kSplitCycles = 1500;  // of blocks that add their sums
// Clusters that run at once, one block to a multiprocessor: an H200 with 132 of these, in groups of different sizes,
// takes 66 of 2 blocks, 30 of 4 and 15 of 8 (cudaOccupancyMaxActiveClusters).
int most_clusters(const Device& device, int blocks) { return device.multiprocessors * 10 / 11 / blocks; }
constexpr double kLeastPacking = 0.02;  // of the time, that M-major weights must save

// The quickest way in that the source's address and strides allow.
Sm90Source source_of(const Problem& problem, int planes_h, int planes_w, bool raw_boxes) {
  if (problem.unaligned_first) return Sm90Source::kWarps;
  const Correlation c = correlation(problem);
  const int64_t size = element_size(problem.dtype);
  const auto whole = [&](int axis) { return c.source.stride[axis] > 0 && c.source.stride[axis] * size % 16 == 0; };
  if (planes_h > kSm90MaxPlanes || !whole(0) || !whole(2)) return Sm90Source::kWarps;
  if (planes_h * planes_w <= kSm90MaxPlanes && c.source.stride[1] == 1 && whole(3) &&
      (problem.groups == 1 || c.source_channels * size % 16 == 0)) {
    return Sm90Source::kTensor;
  }
  return raw_boxes && c.source.stride[3] == 1 && whole(1) ? Sm90Source::kTransposed : Sm90Source::kWarps;
}

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

constexpr int kFlat = 0;  // instead of a number of lines: as many as fit, one after the other (IgemmSm90Plan::flat)

// What the second warpgroup takes: the next 8 pixels of each group, the next groups (of columns: the next lines),
// the same pixels and the next result channels, or items of its own.
enum class Second { kPixels, kGroups, kChannels, kItems };

// One tile shape on one problem. Everything of the plan, or an empty optional where it does not fit.
class Candidates {
 public:
  Candidates(const Problem& problem, int64_t merge, const Device& device, const PlannerOptions& options,
             bool im2col = false)
      : merge_(static_cast<int>(merge)),
        problem_(with_merged_groups(problem, merge)),
        device_(device),
        c_(correlation(problem_)),
        h_(geometry(problem, 0)),
        w_(geometry(problem, 1)),
        span_h_(tap_span(h_)),
        span_w_(tap_span(w_)),
        planes_h_(static_cast<int>(used_planes(h_).size())),
        planes_w_(static_cast<int>(used_planes(w_).size())),
        element_(static_cast<int>(element_size(problem.dtype))),
        source_(im2col ? Sm90Source::kIm2col
                       : source_of(problem_, planes_h_, planes_w_, options.allows("igemm_sm90", "raw_boxes"))),
        weights_in_place_(options.allows("igemm_sm90", "weights_in_place")) {}

  Candidates(const Candidates&) = delete;  // members refer to others

  bool has_many_channels() const { return c_.result_channels > kSm90TileM; }

  // Whether tiles of groups of columns may write whole sectors where they otherwise would not.
  bool writes_parts_of_sectors(Sm90Tile tile) const {
    if (!sm90_writes_whole_sectors(tile) || c_.result.stride[1] == 1 || c_.result.stride[3] != 1) return false;
    const int step = w_.result_step();
    return step == tile.phases ? sector_unit() * element_ < 32
                               : step > tile.phases && step == w_.phases() && sm90_joins_phases(tile);
  }

  // Whether neighbouring columns may share a warpgroup's rows: their taps must overlap.
  bool folds() const {
    return !problem_.blocks && c_.result_channels <= kSm90TileM / 2 && w_.source_step() == 1 && w_.result_step() == 1 &&
           w_.dilation == 1;
  }

  // Whether producer warps may bring the columns of all planes of the width together: as neighbours in memory.
  bool may_bring_together() const {
    return source_ == Sm90Source::kWarps && planes_w_ > 1 && c_.source.stride[3] == 1 && c_.source.stride[1] != 1;
  }

  bool may_copy_results(Sm90Tile tile) const {
    if (problem_.blocks) return false;
    if (c_.result.stride[1] == 1) return element_ == 2 || problem_.allow_tf32;
    return c_.result.stride[3] == 1 && sm90_may_copy_columns(element_, tile, Sm90Source::kTensor);
  }
  // Contiguous ones only in turns, which hide their stores.
  bool may_be_flat(Sm90Tile tile, Second second) const {
    if (c_.result.stride[1] == 1) return may_copy_results(tile);
    return second == Second::kItems && sm90_stores_flat(tile) && c_.result.stride[3] == 1 && w_.result_step() == 1 &&
           (element_ == 2 || problem_.allow_tf32);
  }

  // lines: of a warpgroup, where groups are columns, or kFlat. together: may_bring_together, and so they do.
  std::optional<IgemmSm90Plan> plan(Sm90Tile tile, Sm90Inner inner, Second second, int lines, bool whole_sectors,
                                    bool repack, bool together, int split, Sm90Results results) const {
    IgemmSm90Plan p;
    p.results = results;
    p.tile = tile;
    p.split = split;
    p.merge = merge_;
    p.channels_adjacent = c_.result.stride[1] == 1;
    p.to_blocks = problem_.blocks.has_value();
    if (p.to_blocks && (split > 1 || !sm90_stores_blocks(1, tile, source_))) return std::nullopt;
    p.exchanges = p.to_blocks && sm90_may_exchange(element_, tile) && inner == Sm90Inner::kWidth &&
                  problem_.blocks->width < kSectorBytes / element_;
    p.tile_m = (second == Second::kChannels ? 2 : 1) * kSm90TileM / tile.fold;
    p.in_turns = second == Second::kItems;
    p.whole_sectors = whole_sectors;
    p.row_phases = whole_sectors ? w_.phases() : tile.phases;
    p.even_rows = sector_unit() * element_ % 16 == 0 && c_.result.size[3] * element_ % 16 == 0;
    const bool in_half = c_.source_channels * element_ <= kSm90RowBytes / 2;
    p.row_bytes = in_half && sm90_halves_rows(element_, tile) ? kSm90RowBytes / 2 : kSm90RowBytes;
    p.parts = problem_.dtype == DType::kFloat32 && !problem_.allow_tf32 ? 2 : 1;
    p.source = repack ? Sm90Source::kTensor : source_;
    p.repack = repack;
    p.slice = static_cast<int>(repack ? repack_slice(problem_.batch, repacked_image_bytes(problem_), kRepackHalf)
                                      : problem_.batch);
    if (p.slice == 0) return std::nullopt;
    if (repack && planes_h_ * planes_w_ > kSm90MaxPlanes) return std::nullopt;
    p.inner = inner;
    p.origin_h = span_h_.origin;
    p.origin_w = span_w_.origin;
    p.slots_h = std::max(1, span_h_.most);
    p.planes_h = planes_h_;
    p.phases_h = h_.phases();
    p.phases_w = w_.phases();
    p.phase_groups = p.phases_h * static_cast<int>(ceil_div(p.phases_w, tile.phases));
    p.chunks = static_cast<int>(ceil_div(c_.source_channels * element_, p.row_bytes));
    p.m_tiles = static_cast<int>(ceil_div(c_.result_channels, p.tile_m));
    p.stage_bytes = p.row_bytes * p.tile_m * tile.fold * p.parts;
    if (!choose_pixels(p, second, lines, together)) {
      if (p.source != Sm90Source::kTransposed) return std::nullopt;
      p.source = Sm90Source::kWarps;
      if (!choose_pixels(p, second, lines, false)) return std::nullopt;
    }
    if (std::max({p.halo.n, p.halo.h, p.halo.w, p.raw_width}) > 256) return std::nullopt;  // what a tensor map takes
    if (by_im2col() && (p.halo.n > kMostIm2colImages || std::max(p.halo.h, p.halo.w) > kMostIm2colPixels)) {
      return std::nullopt;
    }
    const int64_t rows = std::max({static_cast<int64_t>(p.row.n) * p.halo.n, static_cast<int64_t>(p.row.h) * p.halo.h,
                                   static_cast<int64_t>(p.row.w) * p.halo.w}) +
                         static_cast<int64_t>(p.halo_planes - 1) * p.plane_rows;
    if (rows * p.row_bytes > device_.shared_bytes_per_block) return std::nullopt;
    p.halo_bytes = static_cast<int>(round_up(rows * p.row_bytes, 1024));
    if (results == Sm90Results::kCopied ? !choose_copies(p) : p.flat && p.channels_adjacent) return std::nullopt;
    if (!choose_raw_row(p)) return std::nullopt;
    const int64_t slots = static_cast<int64_t>(p.phase_groups) * p.planes_h * p.planes_w * p.chunks * tile.phases *
                          p.slots_h * p.slots_w;
    p.column_bytes = slots * p.stage_bytes;
    p.packed_bytes = problem_.groups * p.m_tiles * p.column_bytes;
    // Slots that phases leave empty, and rows and channels that groups do, must not cost much more than the weights
    // and the zeros between merged groups.
    const int64_t weight_bytes = problem_.w.numel() * merge_ * element_ * p.parts;
    if (!sm90_may_pack(p.packed_bytes, weight_bytes)) return std::nullopt;
    p.weights = weights_of(p);
    p.columns = static_cast<int>(problem_.groups) * p.m_tiles * (p.phase_groups / p.item_groups);
    p.repacked_bytes = repack ? repacked_source(problem_).stride[0] * p.slice * element_ : 0;
    const double items = static_cast<double>(p.tiles.n) * p.tiles.h * p.tiles.w * p.columns;
    if (items > (1 << 30)) return std::nullopt;
    p.items = static_cast<int>(items);
    choose_blocks(p);
    if (p.in_turns && p.keep_halo && !p.resident_weights) return std::nullopt;
    if (p.in_turns && p.item_groups > 1 && !p.keep_halo) return std::nullopt;
    if (split > 1) {
      if (!sm90_splits(tile) || by_im2col() || p.in_turns || p.items > most_clusters(device_, split) ||
          p.planes_h * p.planes_w * p.chunks < split || sm90_sums_bytes(tile) > p.staging_at) {
        return std::nullopt;
      }
      p.blocks = p.items * split;
    }
    // M-major weights cost the epilogue an exchange between lanes.
    if (p.weights == Sm90Weights::kMajorM && sm90_pack_ms(p.packed_bytes) < kLeastPacking * estimate_ms(p)) {
      p.weights = Sm90Weights::kPacked;
    }
    return p;
  }

  // The source as it lies is as good as rewritten channels_last.
  bool reads_in_place() const { return source_ == Sm90Source::kTensor || source_ == Sm90Source::kIm2col; }
  bool by_im2col() const { return source_ == Sm90Source::kIm2col; }

  double estimate_ms(const IgemmSm90Plan& p) const {
    const Costs& costs = costs_of(p);
    // Of one item, on average.
    const double pieces = p.item_groups;
    const auto [stages, pixels, products, bring] = item_work(p, costs);
    const double results = 2 * kSm90TileM * 8.0 * p.tile.groups * p.tile.phases * pieces;
    const bool copied = p.results == Sm90Results::kCopied;
    // Copied columns may leave no room for the next item's halos beside those that are kept.
    const bool waits = copied && !p.channels_adjacent && p.keep_halo && p.halo_slots < 2 * p.chunks;
    const double both = (costs.overlapped && !waits ? std::sqrt(products * products + bring * bring)
                                                    : products + bring) +
                        (copied && !p.in_turns ? costs.copy.together * std::min(products, bring) : 0);
    const bool is_wide = p.tile_m * p.tile.fold > kSm90TileM;
    const double piece = costs.item + (copied ? costs.copy.line * p.copied_lines : 0);
    const double wide = !is_wide || p.to_blocks ? 1 : copied ? costs.copy.wide : costs.wide;
    const double leave = (results * result_cost(p, costs) + piece * pieces) * wide + (p.split > 1 ? kSplitCycles : 0);
    const double work = p.in_turns ? std::max(both + costs.turn * pieces, (both + leave) / 2) : both + leave;
    const double halo_bytes = p.source == Sm90Source::kTensor ? pixels * p.row_bytes : 0;
    const double load = (halo_bytes + stages * p.stage_bytes) / costs.bytes;
    const double slices = static_cast<double>(ceil_div(problem_.batch, p.slice));
    const double rounds = slices * static_cast<double>(ceil_div(p.items * p.split, p.blocks));
    const double memory = moved_bytes(p) / device_.bandwidth;
    const double partial = partial_runs(p) * device_.partial_run_bytes / device_.bandwidth;
    // A launch's last item has nothing beside it that could hide its results.
    const double cycles = (rounds - slices) * std::max(work, load) +
                          slices * (std::max(both + leave, load) + start_cycles(p, costs));
    const bool merged = p.resident_weights && p.merge > 1 && !p.channels_adjacent;
    const double compute = (merged ? kResidentMerged : 1) * cycles / kClockSm90;
    return 1e3 * std::max(compute * (stores_flat(p) ? kStoredFlat : 1) + costs.memory * memory, memory + partial) +
           costs.launch_ms + (p.repack ? slices * repack_ms(c_.source, p.repacked_bytes) : 0) +
           (p.weights == Sm90Weights::kPacked ? sm90_pack_ms(p.packed_bytes) : 0);
  }

 private:
  // Of a launch, until the first halos of all blocks are there. By TMA some of it hides behind the launch; items that
  // share a tile of pixels bring it once from memory, and a source that has just been rewritten is in the L2 cache.
  double start_cycles(const IgemmSm90Plan& p, const Costs& costs) const {
    if (p.source == Sm90Source::kTransposed) return costs.transposed_start;
    if (p.source == Sm90Source::kWarps) return costs.warps_start;
    if (p.source != Sm90Source::kTensor || p.phases_h * p.phases_w > 1) return 0;
    const double from_memory = p.repack ? 0 : ceil_div(p.blocks, p.m_tiles) * kClockSm90 / device_.bandwidth;
    return std::max(0.0, kFillTimes * p.halo_bytes * std::max(1 / costs.bytes, from_memory) - kFillHidden);
  }
  const Costs& costs_of(const IgemmSm90Plan& p) const {
    return p.parts == 2 ? kCostsSplit : element_ == 4 ? kCostsTf32 : kCostsShort;
  }

  // Of an item, on average: its stages, the pixels of its halos times chunks; cycles of the products and of bringing
  // the source, each by itself.
  struct Work {
    double stages, pixels, products, bring;
  };
  Work item_work(const IgemmSm90Plan& p, const Costs& costs) const {
    const double pieces = p.item_groups;
    const double stages = static_cast<double>(h_.kernel) * taps_w(p) / p.phase_groups * pieces * p.chunks / p.split;
    const double row = static_cast<double>(p.row_bytes) / kSm90RowBytes;
    const double n = 8.0 * p.tile.groups;
    const double width = p.source == Sm90Source::kTransposed ? p.raw_width
                                                             : p.halo.w * (p.halo_planes > 1 ? w_.source_step() : 1);
    const double pixels = static_cast<double>(p.halo.n) * p.halo.h * width * p.planes_h * p.planes_w * p.chunks *
                          (p.keep_halo ? 1 : pieces) / p.split;
    // Narrow instructions wait for operand A, whose 64 rows cost what half as many columns do.
    const double columns = std::max(n, 0.5 * (n + kSm90TileM));
    const double in_turns = p.results == Sm90Results::kStored ? costs.stage_in_turns : costs.copy.stage_in_turns;
    const double stage = p.in_turns ? 2 * row * columns * costs.product + in_turns
                                    : 4 * row * columns * costs.product + costs.stage;
    const double products = stages * (p.resident_weights ? stage : std::max(stage, costs.weights_way / p.weight_slots));
    const double line = p.source == Sm90Source::kTensor       ? 0
                        : p.source == Sm90Source::kTransposed ? costs.transposed_line
                                                              : costs.warps_line;
    const double brought = p.source == Sm90Source::kTransposed
                               ? static_cast<double>(p.raw_boxes) * p.raw_row_bytes / kSm90RowBytes
                               : row;
    const double bring = p.source == Sm90Source::kIm2col
                             ? p.chunks * im2col_rounds(p) * costs.im2col / p.split
                             : brought * (pixels * pixel_cost(p, costs) + pixels / width * line);
    return {stages, pixels, products, bring};
  }

  // Of all tensors, without the planes of the source that no tap reads, where they lie apart.
  double moved_bytes(const IgemmSm90Plan& p) const {
    const auto bytes = static_cast<double>(problem_.bytes());
    if (p.repack) return bytes;
    double share = static_cast<double>(planes_h_) / h_.planes();
    if (p.source == Sm90Source::kTensor) share *= static_cast<double>(planes_w_) / w_.planes();
    const double source_bytes = static_cast<double>(c_.source.numel()) * element_;
    return bytes - (1 - share) * source_bytes;
  }

  // TMA takes the weights from where they lie if it finds whole chunks of source channels and whole blocks of result
  // channels; where result channels are adjacent, chunks that end within the tensor's last do.
  Sm90Weights weights_of(const IgemmSm90Plan& p) const {
    if (!weights_in_place_ || problem_.unaligned_second) return Sm90Weights::kPacked;
    if (sm90_mixes(p.tile, p.parts, p.merge) || p.halo_planes > 1 || by_im2col()) return Sm90Weights::kPacked;
    if (problem_.blocks && !problem_.blocks->weight_in_blocks) return Sm90Weights::kPacked;
    const bool forward = problem_.direction == Direction::kForward;
    const int64_t next_m = problem_.w.stride[forward ? 1 : 0], next_c = problem_.w.stride[forward ? 0 : 1];
    // Boxes begin at multiples of 16 bytes.
    const auto whole = [&](int64_t stride) { return stride > 0 && stride * element_ % 16 == 0; };
    const auto fits = [&](int64_t adjacent, int64_t other) {
      const int64_t row = (h_.kernel - 1) * problem_.w.stride[2] + (w_.kernel - 1) * problem_.w.stride[3] + adjacent;
      return row <= INT32_MAX && whole(other) && (h_.kernel == 1 || whole(problem_.w.stride[2])) &&
             (w_.kernel == 1 || whole(problem_.w.stride[3]));
    };
    const bool whole_chunks = c_.source_channels * element_ % p.row_bytes == 0;
    if (next_c == 1 && fits(c_.source_channels, next_m) && (!forward || problem_.groups == 1) && whole_chunks &&
        c_.result_channels % kSm90PermutedChannels == 0) {
      return Sm90Weights::kMajorK;
    }
    if (next_m == 1 && fits(c_.result_channels, next_c) && forward && (problem_.groups == 1 || whole_chunks) &&
        sm90_has_major_m(element_, p.tile, p.source)) {
      return Sm90Weights::kMajorM;
    }
    return Sm90Weights::kPacked;
  }

  // Whether results may leave by tensor copies, and what of them is staged.
  bool choose_copies(IgemmSm90Plan& p) const {
    if (p.planes_h * p.planes_w + p.phase_groups > kSm90MaxPlanes) return false;
    if (p.tile.phases > 1 && w_.result_step() != p.tile.phases) return false;
    // A phase without pixels has no tensor map.
    if (c_.result.size[2] < h_.phases() || c_.result.size[3] < w_.phases()) return false;
    for (const int axis : {0, p.channels_adjacent ? 3 : 1, 2}) {
      if (c_.result.stride[axis] <= 0 || c_.result.stride[axis] * element_ % 16 != 0) return false;
    }
    return p.channels_adjacent ? choose_copied_channels(p) : choose_copied_columns(p);
  }

  bool choose_copied_channels(IgemmSm90Plan& p) const {
    if (!sm90_may_copy(p.parts, p.source) || p.split > 1) return false;
    if (problem_.groups > 1 && c_.result_channels * element_ % 16 != 0) return false;
    // A warpgroup's lines are whole, or both have half of one.
    const bool by_width = p.inner == Sm90Inner::kWidth, by_height = p.inner == Sm90Inner::kHeight;
    if (!by_width && (by_height ? p.second.n : p.second.h) > 0) return false;
    p.copied_lines = by_height ? p.pixels.n : by_width ? p.pixels.h - p.second.h : p.pixels.h;
    if (p.second.w > 0 && (p.copied_lines > 1 || p.pixels.w != 2 * p.second.w)) return false;
    const int columns = sm90_copied_columns(p), line_rows = by_width ? p.row.h : 8 * p.line_groups * p.tile.fold;
    if (columns * p.tile.phases > 256) return false;
    const int rows = (p.copied_lines - 1) * line_rows + (by_width ? columns : 8 * columns);
    const int row_bytes = p.tile.phases * sm90_copied_bytes(element_, p.tile.fold);
    p.staged_line_bytes = line_rows * row_bytes;
    p.copied_groups = static_cast<int>(ceil_div(rows, 8 * p.tile.fold));
    // Two groups at once, of four warps.
    p.staged_bytes = static_cast<int>(round_up(p.copied_groups, 2)) * 8 * p.tile.fold * row_bytes / 4;
    return true;
  }

  // Columns adjacent: lines of whole runs, which follow each other in shared memory. Turns were slower with these
  // copies than without, or than no turns.
  bool choose_copied_columns(IgemmSm90Plan& p) const {
    if (!sm90_may_copy_columns(element_, p.tile, p.source) || p.inner != Sm90Inner::kWidth || p.whole_sectors ||
        p.in_turns) {
      return false;
    }
    if (c_.result.size[3] % kSm90CopiedRun != 0 || p.pixels.w % (8 * kSm90RunGroups) != 0) return false;
    if (problem_.groups > 1 && c_.result_channels % p.tile_m != 0) return false;  // no channels beyond a group's
    p.copied_lines = p.pixels.h - p.second.h;
    if (p.copied_lines > 1 && p.line_groups % kSm90RunGroups != 0) return false;
    const int run_bytes = kSm90TileM * kSm90CopiedRun * element_;
    p.copied_groups = (p.copied_lines - 1) * p.line_groups + p.pixels.w / 8;
    p.staged_line_bytes = p.line_groups / kSm90RunGroups * run_bytes;
    p.staged_bytes = p.copied_groups / kSm90RunGroups * run_bytes / 4;
    return true;
  }

  // Of all phases and planes.
  int taps_w(const IgemmSm90Plan& p) const { return w_.kernel + p.tile.fold - 1; }

  // In which the warps write one chunk of a halo.
  double im2col_rounds(const IgemmSm90Plan& p) const {
    const int64_t batches = p.row_bytes / element_ / kSm90Im2colAhead;
    const int64_t units = ceil_div(int64_t{p.halo.n} * p.halo.h * p.halo.w, 32) * batches;
    return static_cast<double>(ceil_div(units, sm90_writers(p.source, p.tile)));
  }
  double one_tap_cost(const IgemmSm90Plan& p, const Costs& costs) const {
    if (p.source != Sm90Source::kWarps || c_.source.stride[3] != 1) return 1;
    if (p.halo_planes > 1) return costs.planes_together;
    const double apart = std::min<double>(w_.source_step() * element_, kSectorBytes);
    return 1 + costs.far_columns * std::max(0.0, apart - kNearBytes) / 4;
  }
  double pixel_cost(const IgemmSm90Plan& p, const Costs& costs) const {
    if (p.source == Sm90Source::kTensor) return costs.tensor;
    return (p.source == Sm90Source::kTransposed ? costs.transposed : costs.warps) *
           (sm90_threads(p.source, p.tile) < 512 ? costs.few_warps : 1) * one_tap_cost(p, costs);
  }
  static bool stores_flat(const IgemmSm90Plan& p) { return p.flat && !p.channels_adjacent; }
  double result_cost(const IgemmSm90Plan& p, const Costs& costs) const {
    if (p.results == Sm90Results::kStored) return store_cost(p, costs.store);
    if (!p.channels_adjacent) return costs.copy.column;
    return costs.copy.element + (p.phases_h * p.phases_w > 1 ? costs.copy.phases : 0);
  }
  // Columns adjacent: whether tiles side by side meet within a sector, at no multiple of 16 bytes, and whether rows of
  // a tile's columns begin or end within one.
  bool meets_in_parts(const IgemmSm90Plan& p) const {
    return p.pixels.w < w_.phase_size(0) && p.pixels.w * p.row_phases * element_ % 16 != 0;
  }
  bool is_ragged(const IgemmSm90Plan& p) const {
    return c_.result.size[3] * element_ % kSectorBytes != 0 || meets_in_parts(p);
  }
  bool has_whole_rows(const IgemmSm90Plan& p) const { return p.pixels.w >= w_.phase_size(0); }
  // Rows of a tile's columns, of all channels, that leave parts of sectors; strict float32's costs were fitted without.
  double partial_runs(const IgemmSm90Plan& p) const {
    if (p.parts == 2 || p.results == Sm90Results::kCopied || p.channels_adjacent || w_.result_step() > p.row_phases ||
        !is_ragged(p)) {
      return 0;
    }
    const double run = std::min(p.pixels.w, w_.phase_size(0)) * p.row_phases;
    return static_cast<double>(c_.result.numel()) / run * (p.whole_sectors ? kWholeSectorsRuns : 1) *
           (has_whole_rows(p) ? kWholeRowsRuns : 1);
  }
  // Of an element of a block: more where a store takes fewer neighbours, and, but in groups of columns, whose rows of
  // blocks follow each other, where these fill few sectors.
  double blocks_cost(const IgemmSm90Plan& p, const StoreCosts& costs) const {
    const int width = static_cast<int>(problem_.blocks->width), vector = sm90_vector_result(problem_, p);
    const double run = std::min(width, element_ == 2 ? 16 : 8) * element_;  // together, of a warp's store
    const double aligned = std::min<double>(gcd(width * element_, kSectorBytes), run);
    const double sectors = p.inner == Sm90Inner::kWidth ? 1 : (run + kSectorBytes - aligned) / run;
    return (costs.blocks + (p.tile.groups > p.line_groups ? costs.channels_lines : 0) +
            costs.blocks_store / (vector * vector) + costs.blocks_sector * (sectors - 1)) *
           (p.in_turns ? costs.turned : 1);
  }
  double store_cost(const IgemmSm90Plan& p, const StoreCosts& costs) const {
    const bool several_lines = stores_flat(p) || p.tile.groups > p.line_groups, two_phases = p.tile.phases > 1;
    if (p.to_blocks) return blocks_cost(p, costs);
    if (p.channels_adjacent) {
      return (costs.channels + (several_lines ? costs.channels_lines : 0) + (two_phases ? costs.channels_phases : 0) +
              (sm90_vector_result(problem_, p) == 1 ? costs.odd_channels : 0)) *
             (p.in_turns ? costs.turned : 1);
    }
    const int step = w_.result_step(), columns = p.tile.phases * p.tile.fold;
    const bool in_runs = p.inner == Sm90Inner::kWidth, in_parts = meets_in_parts(p);
    const double ragged = !is_ragged(p) ? 0 : has_whole_rows(p) ? costs.whole_rows : 1;
    const double images = p.inner == Sm90Inner::kBatch ? costs.images : 0;
    const double wasted = std::max(1.0, std::min<double>(step, 32.0 / element_) / p.row_phases);  // of each sector
    const double times = wasted * (!p.in_turns ? 1 : in_runs ? costs.rs_nhwc_runs : costs.rs_nhwc_staged);
    if (step > p.row_phases) {
      return times * (step > 2 ? costs.gaps : 1) *
             (costs.apart + (is_ragged(p) ? costs.ragged_apart : 0) + images +
              (in_runs && two_phases ? costs.apart_runs : 0));
    }
    if (p.whole_sectors) {
      return times * (costs.rows + costs.rows_row / (p.pixels.w * p.row_phases) +
                      (p.row_phases > p.tile.phases ? costs.rows_phases : 0));
    }
    const int vector = sm90_vector_result(problem_, p);
    const double parts = in_parts ? costs.in_parts : 0;
    if (in_runs) {
      const double row = ragged * costs.ragged_runs_row / (p.pixels.w * p.tile.phases);
      return parts + times * (costs.runs + row + (several_lines ? costs.runs_lines : 0) +
                              ragged * (two_phases ? costs.ragged_runs_phases : costs.ragged_runs) +
                              (vector < 2 * p.tile.phases ? costs.odd_runs : 0));
    }
    const double row = costs.staged_row + ragged * costs.ragged_staged_row;
    const bool full = element_ == 2 && p.tile.fold > 1 && p.tile.groups > kWholeImagesGroups;
    return parts + times * (full && ragged > 0 ? kWholeImagesRagged : 1) *
                       (costs.staged + row / std::min(p.pixels.w * p.tile.phases, p.tile.groups * columns) + images +
                        ragged * (two_phases ? costs.ragged_staged_phases : costs.ragged_staged) +
                        (vector == 1 && element_ == 2 ? costs.odd_staged : 0));
  }

  // Rows of the result begin at any multiple of so many elements within a sector.
  int sector_unit() const {
    const int sector = 32 / element_;
    int unit = sector;
    for (const int axis : {0, 1, 2}) unit = gcd(unit, static_cast<int>(c_.result.stride[axis] % sector));
    return unit;
  }
  // Columns from one tile to the next, so that each row's whole sectors are within a tile. 0: a tile is too narrow.
  int tile_step_of(const IgemmSm90Plan& p) const {
    const int step = 8 * p.row_phases, unit = gcd(sector_unit(), step);  // raw boxes want multiples of 8 columns
    return (p.pixels.w * p.row_phases - (32 / element_ - unit)) / step * 8;
  }

  bool choose_pixels(IgemmSm90Plan& p, Second second, int lines, bool together) const {
    together |= p.source == Sm90Source::kTransposed && w_.source_step() > 1;
    p.planes_w = together ? 1 : planes_w_;
    p.halo_planes = together ? planes_w_ : 1;
    p.slots_w = together ? w_.kernel : std::max(1, span_w_.most) + p.tile.fold - 1;
    const int width = w_.phase_size(0), height = h_.phase_size(0), batch = p.slice;
    const bool other_pixels = second == Second::kPixels || second == Second::kGroups;
    if (p.inner == Sm90Inner::kWidth && lines == kFlat) {
      if (other_pixels || merge_ > 1) return false;
      const int rows = 8 * p.tile.groups, span = span_w_.length, widest = (rows - span) / 2;  // so that two lines fit
      if (widest < 1) return false;
      const int columns = static_cast<int>(ceil_div(width, ceil_div(width, widest)));
      if (!p.channels_adjacent && columns + span < kSm90LeastFlat) return false;
      const int most = 1 + (rows - columns) / (columns + span);
      p.flat = true;
      p.pixels = {1, static_cast<int>(ceil_div(height, ceil_div(height, most))), columns};
      p.line_groups = p.tile.groups;
      p.group_rows = 8;
      p.second = {0, 0, 0};
    } else if (p.inner == Sm90Inner::kWidth) {
      const int spare = static_cast<int>(ceil_div(span_w_.length, 8));
      const int groups = std::min<int>((p.tile.groups - (lines - 1) * spare) / lines,
                                       static_cast<int>(ceil_div(width, 8)));
      if (groups < 1) return false;
      p.pixels = {1, other_pixels ? 2 * lines : lines, 8 * groups};
      p.line_groups = groups + spare;
      p.group_rows = 8;
      p.second = {0, other_pixels ? lines : 0, 0};
    } else {
      const int groups = p.tile.groups * (second == Second::kGroups ? 2 : 1);
      const int inner = second == Second::kPixels ? 16 : 8;
      const int of_line = std::min(groups, static_cast<int>(round_up(ceil_div(width, p.tile.fold), 2)));
      const int columns = of_line * p.tile.fold;
      p.line_groups = static_cast<int>(ceil_div(columns + span_w_.length, p.tile.fold));
      const bool by_height = p.inner == Sm90Inner::kHeight;
      const int of_tile = std::min(1 + (groups - of_line) / p.line_groups, by_height ? batch : height);
      p.pixels = by_height ? Sm90Extent{of_tile, inner, columns} : Sm90Extent{inner, of_tile, columns};
      const int line = p.tile.groups / p.line_groups, column = p.tile.groups % p.line_groups * p.tile.fold;
      p.second = second == Second::kPixels   ? (by_height ? Sm90Extent{0, 8, 0} : Sm90Extent{8, 0, 0})
                 : second == Second::kGroups ? (by_height ? Sm90Extent{line, 0, column} : Sm90Extent{0, line, column})
                                             : Sm90Extent{0, 0, 0};
    }
    p.tile_step = p.whole_sectors && p.pixels.w < width ? tile_step_of(p) : p.pixels.w;
    if (p.tile_step <= 0) return false;
    p.halo = {p.pixels.n, p.pixels.h + span_h_.length, p.pixels.w + span_w_.length};
    const bool tensor = p.source == Sm90Source::kTensor;
    if (p.inner == Sm90Inner::kWidth) {
      const int pitch = p.flat ? p.halo.w : 8 * p.line_groups;
      if (tensor) p.halo.w = pitch;
      p.row = {pitch * p.halo.h, pitch, 1};
    } else {
      // An odd pitch spreads neighbouring columns over the banks when producer warps write them.
      const int extent = p.inner == Sm90Inner::kHeight ? p.halo.h : p.halo.n;
      const int column = tensor ? extent : extent | 1;
      p.halo.w = p.line_groups * p.tile.fold;
      p.group_rows = column * p.tile.fold;
      const int line = column * p.halo.w;
      p.row = p.inner == Sm90Inner::kHeight ? Sm90Extent{line, 1, column} : Sm90Extent{1, line, column};
    }
    if (together) {
      // Neighbouring columns go to different planes: half of eight rows further on, they meet other banks.
      const int rows = std::max({p.row.n * p.halo.n, p.row.h * p.halo.h, p.row.w * p.halo.w});
      p.plane_rows = static_cast<int>(round_up(rows, 8)) + 4;
    }
    if (p.source == Sm90Source::kTransposed) {
      const int aligned = 16 / element_, step = w_.source_step();
      const int skipped = p.tile_step * step % aligned == 0 ? p.origin_w * step & (aligned - 1) : aligned - 1;
      p.raw_width = static_cast<int>(round_up(p.halo.w * step + skipped, aligned));
      p.raw_octets = p.raw_width / 8;
      // Eight channels of an octet of columns in different banks.
      if (element_ == 2 && p.raw_width % 16 == 0) p.raw_width += 8;
      const int places = element_ == 2 ? static_cast<int>(ceil_div(p.halo.n * p.halo.h * p.raw_octets, 2)) * 32
                                       : p.halo.n * p.halo.h * p.halo.w * step;
      if (places > sm90_places(element_)) return false;
    } else {
      p.raw_width = 0;
    }
    p.tiles = {static_cast<int>(ceil_div(batch, p.pixels.n)), static_cast<int>(ceil_div(height, p.pixels.h)),
               1 + static_cast<int>(ceil_div(std::max(0, width - p.pixels.w), p.tile_step))};
    return true;
  }

  // Wide raw boxes take fewer rounds of the warps that transpose them, and room from the weights: for items that wait
  // for those warps.
  bool choose_raw_row(IgemmSm90Plan& p) const {
    if (!choose_memory(p)) return false;
    if (p.source != Sm90Source::kTransposed || element_ != 4) return true;
    const Work work = item_work(p, costs_of(p));
    if (work.bring <= work.products) return true;
    IgemmSm90Plan wide = p;
    wide.raw_row_bytes = kSm90WideRawBytes;
    if (choose_memory(wide) && wide.keep_halo == p.keep_halo &&
        wide.raw_boxes * wide.raw_row_bytes <= p.raw_boxes * p.raw_row_bytes &&
        wide.weight_slots >= std::min(p.weight_slots, kWideRawWeightSlots)) {
      p = wide;
    }
    return true;
  }

  // Shared memory: halos, weights, staging rows, barriers.
  bool choose_memory(IgemmSm90Plan& p) const {
    const bool few_raw_slots = p.raw_row_bytes > kSm90RawBytes || p.results == Sm90Results::kCopied;
    const int least_raw_slots = few_raw_slots ? kLeastFewRawSlots : kLeastRawSlots;
    p.raw_bytes = p.raw_width * p.halo.h * p.halo.n * p.raw_row_bytes;
    p.raw_slot_bytes = static_cast<int>(round_up(p.raw_bytes, 128));
    const int64_t chunk_bytes = p.chunks == 1 ? c_.source_channels * element_ : p.row_bytes;
    p.raw_boxes = static_cast<int>(ceil_div(chunk_bytes, p.raw_row_bytes));
    const bool stages_columns = c_.result.stride[1] != 1 && p.inner != Sm90Inner::kWidth;
    const int words = p.tile.groups * p.tile.phases * p.tile.fold * element_ / 4;
    // As far from a multiple of 16 bytes as in the result, and a word more.
    const bool waits = p.row_phases > p.tile.phases;
    const int line_bytes = p.pixels.w * p.row_phases * element_ + 32;
    const int row_channels = waits ? 16 : sm90_row_channels(element_);
    p.row_lanes = line_bytes < kShortRow ? 4 : 8;
    if (p.results == Sm90Results::kStored) {
      p.staged_line_bytes = waits && p.pixels.h - p.second.h == 1 ? apart_in_banks(line_bytes) : line_bytes;
      p.staged_bytes = p.whole_sectors  ? row_channels * (p.pixels.h - p.second.h) * p.staged_line_bytes
                       : stages_columns ? 32 * (sm90_staged_words(words) | 1) * 4
                                        : 0;
    }
    const int staging = 8 * p.staged_bytes;
    const int raw = p.source == Sm90Source::kTransposed ? p.raw_slot_bytes : 0;
    const int table = by_im2col() ? p.chunks * (p.row_bytes / element_) * kSm90Im2colEntryBytes : 0;
    const int fixed = staging + table + 16 * (kMostHaloSlots + kMostResident + kMostRawSlots + 1);
    const int64_t shared = device_.shared_bytes_per_block;
    const int room = static_cast<int>(by_im2col() ? std::min(kIm2colSharedBytes, shared) : shared) - fixed -
                     least_raw_slots * raw;
    const int halo = p.halo_bytes * p.parts, stage = p.stage_bytes;
    // Rows past the halo belong to groups that do not exist; they must still be inside shared memory.
    const int64_t reach = p.second.n * p.row.n + p.second.h * p.row.h + p.second.w * p.row.w +
                          static_cast<int64_t>(p.tile.groups) * p.group_rows + span_h_.length * p.row.h +
                          span_w_.length * p.row.w + static_cast<int64_t>(p.halo_planes - 1) * p.plane_rows;
    const int64_t overrun = std::max<int64_t>(0, reach * p.row_bytes - p.halo_bytes);

    const int64_t all_stages = static_cast<int64_t>(h_.kernel) * taps_w(p) * p.chunks;  // of all phase groups
    const auto resides = [&](int64_t stages, int64_t halos) {
      return stages <= kMostResident && stages * stage + std::min<int64_t>(2 * halos, kMostHaloSlots) * halo <= room;
    };
    // Kept halos belong to a whole item. Warpgroups take turns between its phase groups, so then all weights must stay.
    // Where they can't, halos that are brought for each phase group are the quicker ones in 16 bits; in TF32 they were
    // not, and are not tried.
    const int64_t kept = (p.in_turns ? 2 : 1) * p.chunks, least_stages = p.in_turns ? all_stages : kLeastWeightSlots;
    p.keep_halo = p.phase_groups > 1 && kept <= kMostHaloSlots && p.planes_h * p.planes_w == 1 && p.split == 1 &&
                  halo * kept + least_stages * stage <= room &&
                  (!p.in_turns || element_ == 4 || resides(all_stages, kept));
    p.item_groups = p.keep_halo ? p.phase_groups : waits ? p.phase_groups / p.phases_h : 1;
    const int64_t in_flight = p.keep_halo ? kept : p.in_turns ? 2 : 1;
    const int64_t most_stages = p.keep_halo || p.phase_groups == 1
                                    ? all_stages
                                    : static_cast<int64_t>(p.slots_h) * p.slots_w * p.tile.phases * p.planes_h *
                                          p.planes_w * p.chunks * p.item_groups;
    p.resident_weights = resides(most_stages, in_flight);
    if (p.resident_weights) {
      p.weight_slots = static_cast<int>(most_stages);
      p.halo_slots = static_cast<int>(std::min<int64_t>({kMostHaloSlots, (room - most_stages * stage) / halo}));
    } else {
      // As many taps ahead as both rings can hold. A halo is released when the first tap of the next one runs (not with
      // two parts), so one slot alone would never be free.
      const int64_t least_halos = std::max<int64_t>(in_flight, p.parts == 1 ? 2 : 1);
      const double halo_taps = static_cast<double>(h_.kernel) * taps_w(p) / (p.phase_groups * p.planes_h * p.planes_w);
      double most = 0;
      for (int weights = kLeastWeightSlots; weights <= kMostWeightSlots; ++weights) {
        const int64_t halos = std::min<int64_t>(kMostHaloSlots, (room - static_cast<int64_t>(weights) * stage) / halo);
        const double ahead = std::min<double>(weights, halo_taps * static_cast<double>(halos));
        if (halos < least_halos || ahead <= most) continue;
        most = ahead;
        p.weight_slots = weights;
        p.halo_slots = static_cast<int>(halos);
      }
      if (most == 0) return false;
    }
    if (p.parts == 1 && p.halo_slots < 2) return false;
    if (overrun > static_cast<int64_t>(p.weight_slots) * stage) return false;
    if (raw > 0) {
      const int64_t left = room - static_cast<int64_t>(p.halo_slots) * halo -
                           static_cast<int64_t>(p.weight_slots) * stage;
      p.raw_slots = static_cast<int>(std::min<int64_t>(kMostRawSlots, least_raw_slots + left / raw));
    } else if (p.source == Sm90Source::kTensor && p.parts == 2) {
      p.raw_slots = p.halo_slots;  // barriers alone: a halo has landed, its low parts are still missing
    }
    p.weights_at = p.halo_slots * halo;
    p.raw_at = p.weights_at + p.weight_slots * stage;
    p.staging_at = p.raw_at + p.raw_slots * raw;
    p.table_at = p.staging_at + staging;
    p.barriers_at = p.table_at + table;
    p.shared_bytes = p.barriers_at + 16 * (p.halo_slots + p.weight_slots + p.raw_slots + 1);
    // The first warpgroup's lead holds weights and halos that the second has not yet used.
    const int64_t per_item = most_stages;
    const int64_t by_weights = p.resident_weights ? per_item : p.weight_slots - 1;
    const int64_t by_halos = p.keep_halo ? per_item
                                         : static_cast<int64_t>(span_h_.least) * (span_w_.least + p.tile.fold - 1) *
                                               p.halo_slots;
    if (p.parts == 2 && !p.in_turns && p.split == 1)
      p.skew = static_cast<int>(std::max<int64_t>(0, std::min({per_item / 2, by_weights, by_halos})));
    return true;
  }

  // At least so many bytes of a line, so that the lines of neighbouring channels spread over the banks.
  int apart_in_banks(int bytes) const {
    const int rest = element_ == 2 ? 64 : 48;
    return static_cast<int>(round_up(bytes - rest, 128)) + rest;
  }

  void choose_blocks(IgemmSm90Plan& p) const {
    const int64_t all = device_.multiprocessors;
    const double uneven = p.keep_halo ? 1 : unevenness(p.item_groups * p.tile.phases);
    p.blocks = static_cast<int>(std::min<int64_t>(all, p.items));
    if (p.resident_weights && p.items > all) {
      // Each block stays with one column.
      p.blocks = static_cast<int>(all / p.columns * p.columns);
      if (p.blocks == 0 || 1.1 * ceil_div(p.items, all) < uneven * ceil_div(p.items, p.blocks)) {
        p.resident_weights = false;  // the slots serve as a ring all the same
        p.blocks = static_cast<int>(all);
      }
    }
    if (p.resident_weights || uneven == 1 || p.items <= p.blocks) return;
    // A block's items lie so many apart: else all would be of the same phases, and others of phases with more taps.
    int fewer = p.blocks;
    while (fewer > 1 && gcd(fewer, p.phase_groups / p.item_groups) > 1) --fewer;
    if (static_cast<double>(ceil_div(p.items, fewer)) < uneven * static_cast<double>(ceil_div(p.items, p.blocks))) {
      p.blocks = fewer;
    }
  }

  // How many times as many taps as the mean the item has that has most, of `across` phases of the width each.
  double unevenness(int across) const {
    if (h_.phases() * w_.phases() == 1) return 1;
    int most_h = 0, most_w = 0;  // several phases have one plane
    for (int phase = 0; phase < h_.phases(); ++phase) most_h = std::max(most_h, axis_taps(h_, phase, 0).count);
    for (int first = 0; first < w_.phases(); first += across) {
      int taps = 0;
      for (int phase = first; phase < std::min(first + across, w_.phases()); ++phase) {
        taps += axis_taps(w_, phase, 0).count;
      }
      most_w = std::max(most_w, taps);
    }
    const double groups = static_cast<double>(h_.phases()) * static_cast<double>(ceil_div(w_.phases(), across));
    return most_h * most_w * groups / (static_cast<double>(h_.kernel) * w_.kernel);
  }

  int merge_;  // so many groups count as one in what follows
  Problem problem_;
  const Device& device_;
  Correlation c_;
  AxisGeometry h_, w_;
  TapSpan span_h_, span_w_;
  int planes_h_, planes_w_;  // that any tap reads
  int element_;
  Sm90Source source_;
  bool weights_in_place_;
};

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

namespace {

// False if the plan uses a planner option that is switched off; Candidates heeds raw_boxes and weights_in_place.
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

std::optional<Plan> plan_igemm_sm90(const Problem& problem, const Device& device, const PlannerOptions& options,
                                    std::vector<Candidate>* considered) {
  if (const std::string why = refusal(problem, device); !why.empty()) {
    if (considered) considered->push_back({"igemm_sm90 family", 0, why});
    return std::nullopt;
  }
  const bool allows_all = options.allows_all_options("igemm_sm90");
  std::optional<Plan> best;
  const auto consider = [&](const Candidates& candidates, Sm90Tile tile) {
    if (tile.phases > 1 && geometry(problem, 1).phases() < tile.phases) return;
    if (tile.fold > 1 && !candidates.folds()) return;
    if (candidates.by_im2col() && !sm90_has_im2col(tile)) return;
    const auto consider_planes = [&](Sm90Inner inner, Second second, int lines, bool whole_sectors, bool repack,
                                     bool together) {
      for (const Sm90Results results : {Sm90Results::kStored, Sm90Results::kCopied}) {
        if (results == Sm90Results::kCopied && !candidates.may_copy_results(tile)) break;
        for (int split = 1; split <= kSm90MostSplit; split *= 2) {
          const std::optional<IgemmSm90Plan> plan = candidates.plan(tile, inner, second, lines, whole_sectors, repack,
                                                                    together, split, results);
          if (!plan) break;
          if (!allows_all && !allows(options, *plan)) continue;
          const double ms = candidates.estimate_ms(*plan);
          const int64_t workspace_bytes = plan->packed_bytes + plan->repacked_bytes + kSm90FlagBytes;
          consider_plan(best, "igemm_sm90 family", *plan, workspace_bytes, ms, problem.dtype, considered);
          if (plan->items > most_clusters(device, 2 * split)) break;
        }
      }
    };
    const auto consider_pixels = [&](Sm90Inner inner, Second second, int lines, bool whole_sectors, bool repack) {
      if (second == Second::kChannels && !candidates.has_many_channels()) return;
      consider_planes(inner, second, lines, whole_sectors, repack, false);
      if (!repack && candidates.may_bring_together()) {
        consider_planes(inner, second, lines, whole_sectors, repack, true);
      }
    };
    for (const bool repack : {false, true}) {
      if (repack && candidates.reads_in_place()) break;
      for (const Second second : {Second::kPixels, Second::kGroups, Second::kChannels, Second::kItems}) {
        consider_pixels(Sm90Inner::kHeight, second, 1, false, repack);
        consider_pixels(Sm90Inner::kBatch, second, 1, false, repack);
      }
      for (const Second second : {Second::kGroups, Second::kChannels, Second::kItems}) {
        if (tile.fold > 1) continue;
        if (candidates.may_be_flat(tile, second)) consider_pixels(Sm90Inner::kWidth, second, kFlat, false, repack);
        for (const int lines : {1, 2, 4}) {
          consider_pixels(Sm90Inner::kWidth, second, lines, false, repack);
          if (candidates.writes_parts_of_sectors(tile)) {
            consider_pixels(Sm90Inner::kWidth, second, lines, true, repack);
          }
        }
      }
    }
  };
  const auto consider_tiles = [&](const Candidates& candidates) {
    if (problem.dtype == DType::kFloat32 && !problem.allow_tf32) {
      for (const Sm90Tile tile : kSm90TilesSplit) consider(candidates, tile);
    } else {
      for (const Sm90Tile tile : kSm90Tiles) consider(candidates, tile);
    }
  };
  for (const int64_t merge : merges_of(problem)) {
    if (problem.blocks && merge > 1) continue;
    consider_tiles(Candidates(problem, merge, device, options));
  }
  if (fits_im2col(problem)) consider_tiles(Candidates(im2col_problem(problem), 1, device, options, true));
  if (!best && considered)
    considered->push_back(
        {"igemm_sm90 family", 0, "no tile fits: its halo in shared memory, its packed weights in their bound"});
  return best;
}

}  // namespace deconv
