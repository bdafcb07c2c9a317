// Cost of a tile of igemm_sm90/conv.cuh.
#include <algorithm>
#include <cmath>

#include "families/igemm_sm90/conv_tile.h"
#include "families/igemm_sm90/planner.h"
#include "lowerings/repack.h"
#include "planner/cost_sm90.h"

namespace deconv {
namespace {

constexpr double kMergedResident = 0.85;  // times an item's cycles: merged groups, columns adjacent, weights that stay

// Rounds in which the warps write one chunk of a halo.
double im2col_rounds(const ConvLayer& l, const IgemmSm90Plan& p) {
  const int64_t batches = p.row_bytes / l.element / kSm90Im2colAhead;
  const int64_t units = ceil_div(int64_t{p.halo.n} * p.halo.h * p.halo.w, 32) * batches;
  return static_cast<double>(ceil_div(units, sm90_writers(p.source, p.tile)));
}
// Columns adjacent: whether rows of a tile's columns begin or end within a sector.
bool is_ragged(const ConvLayer& l, const IgemmSm90Plan& p) {
  const bool meets_in_parts = p.pixels.w < l.w.phase_size(0) && p.pixels.w * p.row_phases * l.element % 16 != 0;
  return l.c.result.size[3] * l.element % kSectorBytes != 0 || meets_in_parts;
}
double row_elements(const ConvLayer& l, const IgemmSm90Plan& p) {
  return std::min(p.pixels.w, l.w.phase_size(0)) * p.row_phases;
}
// Memory traffic for rows of a tile's columns, of all channels, that begin or end within a sector: less where whole
// sectors are written except at the ends of the result's rows, or where a tile has whole rows.
double partial_bytes(const ConvLayer& l, const IgemmSm90Plan& p) {
  constexpr double kRest = 0.35;
  if (p.results == Sm90Results::kCopied || p.channels_adjacent || l.w.result_step() > p.row_phases ||
      !is_ragged(l, p)) {
    return 0;
  }
  return static_cast<double>(l.c.result.numel()) / row_elements(l, p) * l.device.partial_run_bytes *
         (p.whole_sectors ? kRest : 1) * (p.pixels.w >= l.w.phase_size(0) ? kRest : 1);
}
bool is_split3(const IgemmSm90Plan& p) { return p.parts == 2; }

// An element of a block, from registers: more where a store takes fewer neighbours and, except in groups of columns,
// whose rows of blocks follow each other, where these fill few sectors.
double block_cost(const ConvLayer& l, const IgemmSm90Plan& p) {
  const int width = static_cast<int>(l.problem.blocks->width), vector = sm90_vector_result(l.problem, p);
  const double run = std::min(width, kSectorBytes / l.element) * l.element;  // together, of a warp's store
  const double aligned = std::min<double>(gcd(width * l.element, kSectorBytes), run);
  const double sectors = p.inner == Sm90Inner::kWidth ? 1 : (run + kSectorBytes - aligned) / run;
  if (l.element == 4) return 2 * sm90::kStoreSectors * sectors;
  return sm90::kStoreColumns.of(l.element) * sectors + 2 * sm90::kStoreSingle / (vector * vector);
}

// An element of the result, on its way out.
double store_cost(const ConvLayer& l, const IgemmSm90Plan& p) {
  if (p.results == Sm90Results::kCopied) return sm90::kStoreCopied.of(l.element);
  const double turn = !p.in_turns || is_split3(p)          ? 1
                      : p.to_blocks || p.channels_adjacent ? sm90::kTurnChannels
                      : p.inner == Sm90Inner::kWidth       ? sm90::kTurnColumns
                                                           : 1;
  if (p.to_blocks) return turn * block_cost(l, p);
  const bool in_runs = !p.channels_adjacent && p.inner == Sm90Inner::kWidth;
  const bool is_slow = sm90_vector_result(l.problem, p) == 1 && (in_runs || l.element == 2);
  const double single = is_slow ? sm90::kStoreSingle : 0;
  if (p.channels_adjacent) {
    return turn * (sm90::kStoreChannels.of(l.element) + (p.tile.phases > 1 ? sm90::kStoreChannelsPhases : 0) + single);
  }
  const double images = p.inner == Sm90Inner::kBatch ? sm90::kStoreSectors : 0;
  const double staged = sm90::kStoreStaged * l.element;
  const int step = l.w.result_step();
  if (step > p.row_phases) {
    const int wasted = std::max(1, std::min(step, kSectorBytes / l.element) / p.row_phases);  // of a sector
    return turn * wasted * (sm90::kStoreApart * (is_ragged(l, p) ? 1.5 : 1) + images);
  }
  if (p.whole_sectors) {
    const int joined = p.row_phases > p.tile.phases ? 2 : 1;
    return turn * (joined * sm90::kStoreSectors + sm90::kStoreRow / row_elements(l, p));
  }
  const double row = is_ragged(l, p) ? sm90::kStoreRow / row_elements(l, p) : 0;
  if (!in_runs) return staged + images + single + row;
  const bool several_lines = p.flat || p.tile.groups > p.line_groups;
  return turn *
         (sm90::kStoreColumns.of(l.element) + (several_lines ? sm90::kStoreLines.of(l.element) : 0) + single + row);
}

// Producer warps that bring a plane's columns from lines of all planes.
double columns_factor(const ConvLayer& l, const IgemmSm90Plan& p) {
  if (l.c.source.stride[3] != 1 || p.halo_planes > 1) return 1;
  const double apart = std::min(l.w.source_step() * l.element, kSectorBytes);
  return 1 + sm90::kFarColumns * std::max(0.0, apart - sm90::kNearBytes);
}

// An item, on average: its stages, the bytes of its halos that TMA brings; cycles of the products and of bringing the
// source, each by itself.
struct Work {
  double stages, halo_bytes, products, bring;
};
Work item_work(const ConvLayer& l, const IgemmSm90Plan& p) {
  const double pieces = p.item_groups;
  const double stages = static_cast<double>(l.h.kernel) * taps_w(l, p) / p.phase_groups * pieces * p.chunks / p.split;
  const double row = static_cast<double>(p.row_bytes) / kSm90RowBytes;
  const double width = p.source == Sm90Source::kTransposed ? p.raw_width
                                                           : p.halo.w * (p.halo_planes > 1 ? l.w.source_step() : 1);
  const double lines = static_cast<double>(p.halo.n) * p.halo.h * p.planes_h * p.planes_w * p.chunks *
                       (p.keep_halo ? 1 : pieces) / p.split;
  const double mma = sm90::sm80_cycles(8.0 * p.tile.groups, p.row_bytes) * (is_split3(p) ? sm90::kTf32x3 : 1);
  const double turn = is_split3(p)                        ? 2 * sm90::kStage
                      : p.results == Sm90Results::kCopied ? sm90::kStageCopied.of(l.element)
                                                          : sm90::kStage / 2;
  const double stage = p.in_turns ? mma + turn : 2 * mma + sm90::kStage;
  const double products = stages * (p.resident_weights ? stage : std::max(stage, sm90::kHandOver / p.weight_slots));
  if (p.source == Sm90Source::kTensor) {
    const double bytes = lines * width * p.row_bytes;
    return {stages, bytes, products, bytes / sm90::kL2Bytes};
  }
  if (p.source == Sm90Source::kIm2col) {
    return {stages, 0, products, p.chunks * im2col_rounds(l, p) * sm90::kIm2col / p.split};
  }
  const bool transposed = p.source == Sm90Source::kTransposed;
  const double brought = transposed ? static_cast<double>(p.raw_boxes) * p.raw_row_bytes / kSm90RowBytes : row;
  const double pixel = transposed ? sm90::kTransposed.of(l.element) : sm90::kGathered * columns_factor(l, p);
  const double few = sm90_threads(p.source, p.tile) < 512 ? sm90::kFewWriters : 1;
  const double line = width * pixel * few + (is_split3(p) ? 0 : sm90::kLine.of(l.element));
  return {stages, 0, products, brought * lines * line};
}

// All tensors, without the planes of the source that no tap reads, where they lie apart.
double moved_bytes(const ConvLayer& l, const IgemmSm90Plan& p) {
  const auto bytes = static_cast<double>(l.problem.bytes());
  if (p.repack) return bytes;
  double share = static_cast<double>(l.planes_h) / l.h.planes();
  if (p.source == Sm90Source::kTensor) share *= static_cast<double>(l.planes_w) / l.w.planes();
  const double source_bytes = static_cast<double>(l.c.source.numel()) * l.element;
  return bytes - (1 - share) * source_bytes;
}

// From a launch until the first halos are there.
double start_cycles(const ConvLayer& l, const IgemmSm90Plan& p) {
  if (p.source == Sm90Source::kTensor) return p.phases_h * p.phases_w > 1 ? 0 : p.halo_bytes / sm90::kL2Bytes;
  return p.source == Sm90Source::kIm2col || is_split3(p) ? 0 : l.element == 2 ? sm90::kFirstShort : sm90::kFirstPlanes;
}

}  // namespace

bool waits_for_source(const ConvLayer& l, const IgemmSm90Plan& p) {
  const Work work = item_work(l, p);
  return work.bring > work.products;
}

double estimate_ms(const ConvLayer& l, const IgemmSm90Plan& p) {
  const auto [stages, halo_bytes, products, bring] = item_work(l, p);
  const double pieces = p.item_groups;
  // Copied columns may leave no room for the next item's halos beside those that are kept.
  const bool is_copied = p.results == Sm90Results::kCopied, copies_columns = is_copied && !p.channels_adjacent;
  const bool waits = is_split3(p) || (copies_columns && p.keep_halo && p.halo_slots < 2 * p.chunks);
  const double both = (waits ? products + bring : std::sqrt(products * products + bring * bring)) +
                      (is_copied && !p.in_turns ? sm90::kTogether * std::min(products, bring) : 0);
  const double results = 2 * kSm90TileM * 8.0 * p.tile.groups * p.tile.phases * pieces;
  const bool is_wide = p.tile_m * p.tile.fold > kSm90TileM && !p.to_blocks;
  const double wide = !is_wide ? 1 : is_copied ? sm90::kStoreWideCopied : sm90::kStoreWide;
  const double piece = sm90::kHandOver + (is_copied ? sm90::kStoreCopiedLine * p.copied_lines : 0);
  const double leave = (results * store_cost(l, p) + piece * pieces) * wide + (p.split > 1 ? sm90::kHandOver : 0);
  const auto slices = static_cast<double>(ceil_div(l.problem.batch, p.slice));
  sm90::Work all;
  all.launches = slices;
  all.rounds = static_cast<double>(ceil_div(p.items * p.split, p.blocks));
  all.item = p.in_turns ? std::max(both + sm90::kTurn * pieces, (both + leave) / 2) : both + leave;
  all.load = (halo_bytes + stages * p.stage_bytes) / sm90::kL2Bytes;
  all.last = both + leave;
  all.start = start_cycles(l, p);
  if (p.resident_weights && p.merge > 1 && !p.channels_adjacent) all.item *= kMergedResident;
  return sm90::kernel_ms(l.device, all, moved_bytes(l, p) + partial_bytes(l, p)) +
         (p.repack ? slices * repack_ms(l.c.source, p.repacked_bytes) : 0) +
         (p.weights == Sm90Weights::kPacked ? sm90_pack_ms(p.packed_bytes) : 0);
}

}  // namespace deconv
