// Cost of a tile of igemm_sm90/conv.cuh.
#include <algorithm>
#include <cmath>

#include "families/igemm_sm90/conv_tile.h"
#include "families/igemm_sm90/planner.h"
#include "lowerings/repack.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

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

const Costs& costs_of(const ConvLayer& l, const IgemmSm90Plan& p) {
  return p.parts == 2 ? kCostsSplit : l.element == 4 ? kCostsTf32 : kCostsShort;
}

// In which the warps write one chunk of a halo.
double im2col_rounds(const ConvLayer& l, const IgemmSm90Plan& p) {
  const int64_t batches = p.row_bytes / l.element / kSm90Im2colAhead;
  const int64_t units = ceil_div(int64_t{p.halo.n} * p.halo.h * p.halo.w, 32) * batches;
  return static_cast<double>(ceil_div(units, sm90_writers(p.source, p.tile)));
}
double one_tap_cost(const ConvLayer& l, const IgemmSm90Plan& p, const Costs& costs) {
  if (p.source != Sm90Source::kWarps || l.c.source.stride[3] != 1) return 1;
  if (p.halo_planes > 1) return costs.planes_together;
  const double apart = std::min<double>(l.w.source_step() * l.element, kSectorBytes);
  return 1 + costs.far_columns * std::max(0.0, apart - kNearBytes) / 4;
}
double pixel_cost(const ConvLayer& l, const IgemmSm90Plan& p, const Costs& costs) {
  if (p.source == Sm90Source::kTensor) return costs.tensor;
  return (p.source == Sm90Source::kTransposed ? costs.transposed : costs.warps) *
         (sm90_threads(p.source, p.tile) < 512 ? costs.few_warps : 1) * one_tap_cost(l, p, costs);
}
bool stores_flat(const IgemmSm90Plan& p) { return p.flat && !p.channels_adjacent; }
// Columns adjacent: whether tiles side by side meet within a sector, at no multiple of 16 bytes, and whether rows of
// a tile's columns begin or end within one.
bool meets_in_parts(const ConvLayer& l, const IgemmSm90Plan& p) {
  return p.pixels.w < l.w.phase_size(0) && p.pixels.w * p.row_phases * l.element % 16 != 0;
}
bool is_ragged(const ConvLayer& l, const IgemmSm90Plan& p) {
  return l.c.result.size[3] * l.element % kSectorBytes != 0 || meets_in_parts(l, p);
}
bool has_whole_rows(const ConvLayer& l, const IgemmSm90Plan& p) { return p.pixels.w >= l.w.phase_size(0); }
// Rows of a tile's columns, of all channels, that leave parts of sectors; strict float32's costs were fitted without.
double partial_runs(const ConvLayer& l, const IgemmSm90Plan& p) {
  if (p.parts == 2 || p.results == Sm90Results::kCopied || p.channels_adjacent || l.w.result_step() > p.row_phases ||
      !is_ragged(l, p)) {
    return 0;
  }
  const double run = std::min(p.pixels.w, l.w.phase_size(0)) * p.row_phases;
  return static_cast<double>(l.c.result.numel()) / run * (p.whole_sectors ? kWholeSectorsRuns : 1) *
         (has_whole_rows(l, p) ? kWholeRowsRuns : 1);
}
// Of an element of a block: more where a store takes fewer neighbours, and, but in groups of columns, whose rows of
// blocks follow each other, where these fill few sectors.
double blocks_cost(const ConvLayer& l, const IgemmSm90Plan& p, const StoreCosts& costs) {
  const int width = static_cast<int>(l.problem.blocks->width), vector = sm90_vector_result(l.problem, p);
  const double run = std::min(width, l.element == 2 ? 16 : 8) * l.element;  // together, of a warp's store
  const double aligned = std::min<double>(gcd(width * l.element, kSectorBytes), run);
  const double sectors = p.inner == Sm90Inner::kWidth ? 1 : (run + kSectorBytes - aligned) / run;
  return (costs.blocks + (p.tile.groups > p.line_groups ? costs.channels_lines : 0) +
          costs.blocks_store / (vector * vector) + costs.blocks_sector * (sectors - 1)) *
         (p.in_turns ? costs.turned : 1);
}
double store_cost(const ConvLayer& l, const IgemmSm90Plan& p, const StoreCosts& costs) {
  const bool several_lines = stores_flat(p) || p.tile.groups > p.line_groups, two_phases = p.tile.phases > 1;
  if (p.to_blocks) return blocks_cost(l, p, costs);
  if (p.channels_adjacent) {
    return (costs.channels + (several_lines ? costs.channels_lines : 0) + (two_phases ? costs.channels_phases : 0) +
            (sm90_vector_result(l.problem, p) == 1 ? costs.odd_channels : 0)) *
           (p.in_turns ? costs.turned : 1);
  }
  const int step = l.w.result_step(), columns = p.tile.phases * p.tile.fold;
  const bool in_runs = p.inner == Sm90Inner::kWidth, in_parts = meets_in_parts(l, p);
  const double ragged = !is_ragged(l, p) ? 0 : has_whole_rows(l, p) ? costs.whole_rows : 1;
  const double images = p.inner == Sm90Inner::kBatch ? costs.images : 0;
  const double wasted = std::max(1.0, std::min<double>(step, 32.0 / l.element) / p.row_phases);  // of each sector
  const double times = wasted * (!p.in_turns ? 1 : in_runs ? costs.rs_nhwc_runs : costs.rs_nhwc_staged);
  if (step > p.row_phases) {
    return times * (step > 2 ? costs.gaps : 1) *
           (costs.apart + (is_ragged(l, p) ? costs.ragged_apart : 0) + images +
            (in_runs && two_phases ? costs.apart_runs : 0));
  }
  if (p.whole_sectors) {
    return times * (costs.rows + costs.rows_row / (p.pixels.w * p.row_phases) +
                    (p.row_phases > p.tile.phases ? costs.rows_phases : 0));
  }
  const int vector = sm90_vector_result(l.problem, p);
  const double parts = in_parts ? costs.in_parts : 0;
  if (in_runs) {
    const double row = ragged * costs.ragged_runs_row / (p.pixels.w * p.tile.phases);
    return parts + times * (costs.runs + row + (several_lines ? costs.runs_lines : 0) +
                            ragged * (two_phases ? costs.ragged_runs_phases : costs.ragged_runs) +
                            (vector < 2 * p.tile.phases ? costs.odd_runs : 0));
  }
  const double row = costs.staged_row + ragged * costs.ragged_staged_row;
  const bool full = l.element == 2 && p.tile.fold > 1 && p.tile.groups > kWholeImagesGroups;
  return parts + times * (full && ragged > 0 ? kWholeImagesRagged : 1) *
                     (costs.staged + row / std::min(p.pixels.w * p.tile.phases, p.tile.groups * columns) + images +
                      ragged * (two_phases ? costs.ragged_staged_phases : costs.ragged_staged) +
                      (vector == 1 && l.element == 2 ? costs.odd_staged : 0));
}

double result_cost(const ConvLayer& l, const IgemmSm90Plan& p, const Costs& costs) {
  if (p.results == Sm90Results::kStored) return store_cost(l, p, costs.store);
  if (!p.channels_adjacent) return costs.copy.column;
  return costs.copy.element + (p.phases_h * p.phases_w > 1 ? costs.copy.phases : 0);
}

// Of an item, on average: its stages, the pixels of its halos times chunks; cycles of the products and of bringing
// the source, each by itself.
struct Work {
  double stages, pixels, products, bring;
};
Work item_work(const ConvLayer& l, const IgemmSm90Plan& p, const Costs& costs) {
  const double pieces = p.item_groups;
  const double stages = static_cast<double>(l.h.kernel) * taps_w(l, p) / p.phase_groups * pieces * p.chunks / p.split;
  const double row = static_cast<double>(p.row_bytes) / kSm90RowBytes;
  const double n = 8.0 * p.tile.groups;
  const double width = p.source == Sm90Source::kTransposed ? p.raw_width
                                                           : p.halo.w * (p.halo_planes > 1 ? l.w.source_step() : 1);
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
                           ? p.chunks * im2col_rounds(l, p) * costs.im2col / p.split
                           : brought * (pixels * pixel_cost(l, p, costs) + pixels / width * line);
  return {stages, pixels, products, bring};
}

// Of all tensors, without the planes of the source that no tap reads, where they lie apart.
double moved_bytes(const ConvLayer& l, const IgemmSm90Plan& p) {
  const auto bytes = static_cast<double>(l.problem.bytes());
  if (p.repack) return bytes;
  double share = static_cast<double>(l.planes_h) / l.h.planes();
  if (p.source == Sm90Source::kTensor) share *= static_cast<double>(l.planes_w) / l.w.planes();
  const double source_bytes = static_cast<double>(l.c.source.numel()) * l.element;
  return bytes - (1 - share) * source_bytes;
}

// Of a launch, until the first halos of all blocks are there. By TMA some of it hides behind the launch; items that
// share a tile of pixels bring it once from memory, and a source that has just been rewritten is in the L2 cache.
double start_cycles(const ConvLayer& l, const IgemmSm90Plan& p, const Costs& costs) {
  if (p.source == Sm90Source::kTransposed) return costs.transposed_start;
  if (p.source == Sm90Source::kWarps) return costs.warps_start;
  if (p.source != Sm90Source::kTensor || p.phases_h * p.phases_w > 1) return 0;
  const double from_memory = p.repack ? 0 : ceil_div(p.blocks, p.m_tiles) * kClockSm90 / l.device.bandwidth;
  return std::max(0.0, kFillTimes * p.halo_bytes * std::max(1 / costs.bytes, from_memory) - kFillHidden);
}

}  // namespace

bool waits_for_source(const ConvLayer& l, const IgemmSm90Plan& p) {
  const Work work = item_work(l, p, costs_of(l, p));
  return work.bring > work.products;
}

double estimate_ms(const ConvLayer& l, const IgemmSm90Plan& p) {
  const Costs& costs = costs_of(l, p);
  // Of one item, on average.
  const double pieces = p.item_groups;
  const auto [stages, pixels, products, bring] = item_work(l, p, costs);
  const double results = 2 * kSm90TileM * 8.0 * p.tile.groups * p.tile.phases * pieces;
  const bool copied = p.results == Sm90Results::kCopied;
  // Copied columns may leave no room for the next item's halos beside those that are kept.
  const bool waits = copied && !p.channels_adjacent && p.keep_halo && p.halo_slots < 2 * p.chunks;
  const double both = (costs.overlapped && !waits ? std::sqrt(products * products + bring * bring) : products + bring) +
                      (copied && !p.in_turns ? costs.copy.together * std::min(products, bring) : 0);
  const bool is_wide = p.tile_m * p.tile.fold > kSm90TileM;
  const double piece = costs.item + (copied ? costs.copy.line * p.copied_lines : 0);
  const double wide = !is_wide || p.to_blocks ? 1 : copied ? costs.copy.wide : costs.wide;
  const double leave = (results * result_cost(l, p, costs) + piece * pieces) * wide + (p.split > 1 ? kSplitCycles : 0);
  const double work = p.in_turns ? std::max(both + costs.turn * pieces, (both + leave) / 2) : both + leave;
  const double halo_bytes = p.source == Sm90Source::kTensor ? pixels * p.row_bytes : 0;
  const double load = (halo_bytes + stages * p.stage_bytes) / costs.bytes;
  const double slices = static_cast<double>(ceil_div(l.problem.batch, p.slice));
  const double rounds = slices * static_cast<double>(ceil_div(p.items * p.split, p.blocks));
  const double memory = moved_bytes(l, p) / l.device.bandwidth;
  const double partial = partial_runs(l, p) * l.device.partial_run_bytes / l.device.bandwidth;
  // A launch's last item has nothing beside it that could hide its results.
  const double cycles = (rounds - slices) * std::max(work, load) +
                        slices * (std::max(both + leave, load) + start_cycles(l, p, costs));
  const bool merged = p.resident_weights && p.merge > 1 && !p.channels_adjacent;
  const double compute = (merged ? kResidentMerged : 1) * cycles / kClockSm90;
  return 1e3 * std::max(compute * (stores_flat(p) ? kStoredFlat : 1) + costs.memory * memory, memory + partial) +
         costs.launch_ms + (p.repack ? slices * repack_ms(l.c.source, p.repacked_bytes) : 0) +
         (p.weights == Sm90Weights::kPacked ? sm90_pack_ms(p.packed_bytes) : 0);
}

}  // namespace deconv
