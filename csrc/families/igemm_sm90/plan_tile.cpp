// Tiles of igemm_sm90/conv.cuh: pixels, shared memory, blocks.
#include <algorithm>

#include "families/igemm_sm90/conv_tile.h"
#include "families/igemm_sm90/planner.h"
#include "lowerings/repack.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

constexpr int kMostWeightSlots = 12, kLeastWeightSlots = 3;
constexpr int kMostHaloSlots = 8;
constexpr int kLeastRawSlots = 3, kLeastFewRawSlots = 2, kMostRawSlots = 8;
constexpr int kWideRawWeightSlots = 4;  // beside wide raw boxes at least, or as many as without
constexpr int kShortRow = 256;  // bytes of a row that four lanes store; longer ones eight
constexpr int kMostResident = 150;  // stages of weights that may stay
// im2col reads the source again for each tap, so L1 should hold it.
constexpr int64_t kIm2colSharedBytes = 160 << 10;
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

// TMA takes the weights from where they lie if it finds whole chunks of source channels and whole blocks of result
// channels; where result channels are adjacent, chunks that end within the tensor's last do.
Sm90Weights weights_of(const ConvLayer& l, const IgemmSm90Plan& p) {
  if (!l.weights_in_place || l.problem.unaligned_second) return Sm90Weights::kPacked;
  if (sm90_mixes(p.tile, p.parts, p.merge) || p.halo_planes > 1 || l.by_im2col()) return Sm90Weights::kPacked;
  if (l.problem.blocks && !l.problem.blocks->weight_in_blocks) return Sm90Weights::kPacked;
  const bool forward = l.problem.direction == Direction::kForward;
  const int64_t next_m = l.problem.w.stride[forward ? 1 : 0], next_c = l.problem.w.stride[forward ? 0 : 1];
  // Boxes begin at multiples of 16 bytes.
  const auto whole = [&](int64_t stride) { return stride > 0 && stride * l.element % 16 == 0; };
  const auto fits = [&](int64_t adjacent, int64_t other) {
    const int64_t row = (l.h.kernel - 1) * l.problem.w.stride[2] + (l.w.kernel - 1) * l.problem.w.stride[3] + adjacent;
    return row <= INT32_MAX && whole(other) && (l.h.kernel == 1 || whole(l.problem.w.stride[2])) &&
           (l.w.kernel == 1 || whole(l.problem.w.stride[3]));
  };
  const bool whole_chunks = l.c.source_channels * l.element % p.row_bytes == 0;
  if (next_c == 1 && fits(l.c.source_channels, next_m) && (!forward || l.problem.groups == 1) && whole_chunks &&
      l.c.result_channels % kSm90PermutedChannels == 0) {
    return Sm90Weights::kMajorK;
  }
  if (next_m == 1 && fits(l.c.result_channels, next_c) && forward && (l.problem.groups == 1 || whole_chunks) &&
      sm90_has_major_m(l.element, p.tile, p.source)) {
    return Sm90Weights::kMajorM;
  }
  return Sm90Weights::kPacked;
}

bool choose_copied_channels(const ConvLayer& l, IgemmSm90Plan& p) {
  if (!sm90_may_copy(p.parts, p.source) || p.split > 1) return false;
  if (l.problem.groups > 1 && l.c.result_channels * l.element % 16 != 0) return false;
  // A warpgroup's lines are whole, or both have half of one.
  const bool by_width = p.inner == Sm90Inner::kWidth, by_height = p.inner == Sm90Inner::kHeight;
  if (!by_width && (by_height ? p.second.n : p.second.h) > 0) return false;
  p.copied_lines = by_height ? p.pixels.n : by_width ? p.pixels.h - p.second.h : p.pixels.h;
  if (p.second.w > 0 && (p.copied_lines > 1 || p.pixels.w != 2 * p.second.w)) return false;
  const int columns = sm90_copied_columns(p), line_rows = by_width ? p.row.h : 8 * p.line_groups * p.tile.fold;
  if (columns * p.tile.phases > 256) return false;
  const int rows = (p.copied_lines - 1) * line_rows + (by_width ? columns : 8 * columns);
  const int row_bytes = p.tile.phases * sm90_copied_bytes(l.element, p.tile.fold);
  p.staged_line_bytes = line_rows * row_bytes;
  p.copied_groups = static_cast<int>(ceil_div(rows, 8 * p.tile.fold));
  // Two groups at once, of four warps.
  p.staged_bytes = static_cast<int>(round_up(p.copied_groups, 2)) * 8 * p.tile.fold * row_bytes / 4;
  return true;
}

// Columns adjacent: lines of whole runs, which follow each other in shared memory. Turns were slower with these
// copies than without, or than no turns.
bool choose_copied_columns(const ConvLayer& l, IgemmSm90Plan& p) {
  if (!sm90_may_copy_columns(l.element, p.tile, p.source) || p.inner != Sm90Inner::kWidth || p.whole_sectors ||
      p.in_turns) {
    return false;
  }
  if (l.c.result.size[3] % kSm90CopiedRun != 0 || p.pixels.w % (8 * kSm90RunGroups) != 0) return false;
  if (l.problem.groups > 1 && l.c.result_channels % p.tile_m != 0) return false;  // no channels beyond a group's
  p.copied_lines = p.pixels.h - p.second.h;
  if (p.copied_lines > 1 && p.line_groups % kSm90RunGroups != 0) return false;
  const int run_bytes = kSm90TileM * kSm90CopiedRun * l.element;
  p.copied_groups = (p.copied_lines - 1) * p.line_groups + p.pixels.w / 8;
  p.staged_line_bytes = p.line_groups / kSm90RunGroups * run_bytes;
  p.staged_bytes = p.copied_groups / kSm90RunGroups * run_bytes / 4;
  return true;
}

// Whether results may leave by tensor copies, and what of them is staged.
bool choose_copies(const ConvLayer& l, IgemmSm90Plan& p) {
  if (p.planes_h * p.planes_w + p.phase_groups > kSm90MaxPlanes) return false;
  if (p.tile.phases > 1 && l.w.result_step() != p.tile.phases) return false;
  // A phase without pixels has no tensor map.
  if (l.c.result.size[2] < l.h.phases() || l.c.result.size[3] < l.w.phases()) return false;
  for (const int axis : {0, p.channels_adjacent ? 3 : 1, 2}) {
    if (l.c.result.stride[axis] <= 0 || l.c.result.stride[axis] * l.element % 16 != 0) return false;
  }
  return p.channels_adjacent ? choose_copied_channels(l, p) : choose_copied_columns(l, p);
}

// Columns from one tile to the next, so that each row's whole sectors are within a tile. 0: a tile is too narrow.
int tile_step_of(const ConvLayer& l, const IgemmSm90Plan& p) {
  const int step = 8 * p.row_phases, unit = gcd(sector_unit(l), step);  // raw boxes want multiples of 8 columns
  return (p.pixels.w * p.row_phases - (32 / l.element - unit)) / step * 8;
}

bool choose_pixels(const ConvLayer& l, IgemmSm90Plan& p, Second second, int lines, bool together) {
  together |= p.source == Sm90Source::kTransposed && l.w.source_step() > 1;
  p.planes_w = together ? 1 : l.planes_w;
  p.halo_planes = together ? l.planes_w : 1;
  p.slots_w = together ? l.w.kernel : std::max(1, l.span_w.most) + p.tile.fold - 1;
  const int width = l.w.phase_size(0), height = l.h.phase_size(0), batch = p.slice;
  const bool other_pixels = second == Second::kPixels || second == Second::kGroups;
  if (p.inner == Sm90Inner::kWidth && lines == kFlat) {
    if (other_pixels || l.merge > 1) return false;
    const int rows = 8 * p.tile.groups, span = l.span_w.length, widest = (rows - span) / 2;  // so that two lines fit
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
    const int spare = static_cast<int>(ceil_div(l.span_w.length, 8));
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
    p.line_groups = static_cast<int>(ceil_div(columns + l.span_w.length, p.tile.fold));
    const bool by_height = p.inner == Sm90Inner::kHeight;
    const int of_tile = std::min(1 + (groups - of_line) / p.line_groups, by_height ? batch : height);
    p.pixels = by_height ? Sm90Extent{of_tile, inner, columns} : Sm90Extent{inner, of_tile, columns};
    const int line = p.tile.groups / p.line_groups, column = p.tile.groups % p.line_groups * p.tile.fold;
    p.second = second == Second::kPixels   ? (by_height ? Sm90Extent{0, 8, 0} : Sm90Extent{8, 0, 0})
               : second == Second::kGroups ? (by_height ? Sm90Extent{line, 0, column} : Sm90Extent{0, line, column})
                                           : Sm90Extent{0, 0, 0};
  }
  p.tile_step = p.whole_sectors && p.pixels.w < width ? tile_step_of(l, p) : p.pixels.w;
  if (p.tile_step <= 0) return false;
  p.halo = {p.pixels.n, p.pixels.h + l.span_h.length, p.pixels.w + l.span_w.length};
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
    const int aligned = 16 / l.element, step = l.w.source_step();
    const int skipped = p.tile_step * step % aligned == 0 ? p.origin_w * step & (aligned - 1) : aligned - 1;
    p.raw_width = static_cast<int>(round_up(p.halo.w * step + skipped, aligned));
    p.raw_octets = p.raw_width / 8;
    // Eight channels of an octet of columns in different banks.
    if (l.element == 2 && p.raw_width % 16 == 0) p.raw_width += 8;
    const int places = l.element == 2 ? static_cast<int>(ceil_div(p.halo.n * p.halo.h * p.raw_octets, 2)) * 32
                                      : p.halo.n * p.halo.h * p.halo.w * step;
    if (places > sm90_places(l.element)) return false;
  } else {
    p.raw_width = 0;
  }
  p.tiles = {static_cast<int>(ceil_div(batch, p.pixels.n)), static_cast<int>(ceil_div(height, p.pixels.h)),
             1 + static_cast<int>(ceil_div(std::max(0, width - p.pixels.w), p.tile_step))};
  return true;
}

// At least so many bytes of a line, so that the lines of neighbouring channels spread over the banks.
int apart_in_banks(const ConvLayer& l, int bytes) {
  const int rest = l.element == 2 ? 64 : 48;
  return static_cast<int>(round_up(bytes - rest, 128)) + rest;
}

// Shared memory: halos, weights, staging rows, barriers.
bool choose_memory(const ConvLayer& l, IgemmSm90Plan& p) {
  const bool few_raw_slots = p.raw_row_bytes > kSm90RawBytes || p.results == Sm90Results::kCopied;
  const int least_raw_slots = few_raw_slots ? kLeastFewRawSlots : kLeastRawSlots;
  p.raw_bytes = p.raw_width * p.halo.h * p.halo.n * p.raw_row_bytes;
  p.raw_slot_bytes = static_cast<int>(round_up(p.raw_bytes, 128));
  const int64_t chunk_bytes = p.chunks == 1 ? l.c.source_channels * l.element : p.row_bytes;
  p.raw_boxes = static_cast<int>(ceil_div(chunk_bytes, p.raw_row_bytes));
  const bool stages_columns = l.c.result.stride[1] != 1 && p.inner != Sm90Inner::kWidth;
  const int words = p.tile.groups * p.tile.phases * p.tile.fold * l.element / 4;
  // As far from a multiple of 16 bytes as in the result, and a word more.
  const bool waits = p.row_phases > p.tile.phases;
  const int line_bytes = p.pixels.w * p.row_phases * l.element + 32;
  const int row_channels = waits ? 16 : sm90_row_channels(l.element);
  p.row_lanes = line_bytes < kShortRow ? 4 : 8;
  if (p.results == Sm90Results::kStored) {
    p.staged_line_bytes = waits && p.pixels.h - p.second.h == 1 ? apart_in_banks(l, line_bytes) : line_bytes;
    p.staged_bytes = p.whole_sectors  ? row_channels * (p.pixels.h - p.second.h) * p.staged_line_bytes
                     : stages_columns ? 32 * (sm90_staged_words(words) | 1) * 4
                                      : 0;
  }
  const int staging = 8 * p.staged_bytes;
  const int raw = p.source == Sm90Source::kTransposed ? p.raw_slot_bytes : 0;
  const int table = l.by_im2col() ? p.chunks * (p.row_bytes / l.element) * kSm90Im2colEntryBytes : 0;
  const int fixed = staging + table + 16 * (kMostHaloSlots + kMostResident + kMostRawSlots + 1);
  const int64_t shared = l.device.shared_bytes_per_block;
  const int room = static_cast<int>(l.by_im2col() ? std::min(kIm2colSharedBytes, shared) : shared) - fixed -
                   least_raw_slots * raw;
  const int halo = p.halo_bytes * p.parts, stage = p.stage_bytes;
  // Rows past the halo belong to groups that do not exist; they must still be inside shared memory.
  const int64_t reach = p.second.n * p.row.n + p.second.h * p.row.h + p.second.w * p.row.w +
                        static_cast<int64_t>(p.tile.groups) * p.group_rows + l.span_h.length * p.row.h +
                        l.span_w.length * p.row.w + static_cast<int64_t>(p.halo_planes - 1) * p.plane_rows;
  const int64_t overrun = std::max<int64_t>(0, reach * p.row_bytes - p.halo_bytes);

  const int64_t all_stages = static_cast<int64_t>(l.h.kernel) * taps_w(l, p) * p.chunks;  // of all phase groups
  const auto resides = [&](int64_t stages, int64_t halos) {
    return stages <= kMostResident && stages * stage + std::min<int64_t>(2 * halos, kMostHaloSlots) * halo <= room;
  };
  // Kept halos belong to a whole item. Warpgroups take turns between its phase groups, so then all weights must stay.
  // Where they can't, halos that are brought for each phase group are the quicker ones in 16 bits; in TF32 they were
  // not, and are not tried.
  const int64_t kept = (p.in_turns ? 2 : 1) * p.chunks, least_stages = p.in_turns ? all_stages : kLeastWeightSlots;
  p.keep_halo = p.phase_groups > 1 && kept <= kMostHaloSlots && p.planes_h * p.planes_w == 1 && p.split == 1 &&
                halo * kept + least_stages * stage <= room &&
                (!p.in_turns || l.element == 4 || resides(all_stages, kept));
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
    const double halo_taps = static_cast<double>(l.h.kernel) * taps_w(l, p) /
                             (p.phase_groups * p.planes_h * p.planes_w);
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
                                       : static_cast<int64_t>(l.span_h.least) * (l.span_w.least + p.tile.fold - 1) *
                                             p.halo_slots;
  if (p.parts == 2 && !p.in_turns && p.split == 1)
    p.skew = static_cast<int>(std::max<int64_t>(0, std::min({per_item / 2, by_weights, by_halos})));
  return true;
}

// Wide raw boxes take fewer rounds of the warps that transpose them, and room from the weights: for items that wait
// for those warps.
bool choose_raw_row(const ConvLayer& l, IgemmSm90Plan& p) {
  if (!choose_memory(l, p)) return false;
  if (p.source != Sm90Source::kTransposed || l.element != 4) return true;
  if (!waits_for_source(l, p)) return true;
  IgemmSm90Plan wide = p;
  wide.raw_row_bytes = kSm90WideRawBytes;
  if (choose_memory(l, wide) && wide.keep_halo == p.keep_halo &&
      wide.raw_boxes * wide.raw_row_bytes <= p.raw_boxes * p.raw_row_bytes &&
      wide.weight_slots >= std::min(p.weight_slots, kWideRawWeightSlots)) {
    p = wide;
  }
  return true;
}

// How many times as many taps as the mean the item has that has most, of `across` phases of the width each.
double unevenness(const ConvLayer& l, int across) {
  if (l.h.phases() * l.w.phases() == 1) return 1;
  int most_h = 0, most_w = 0;  // several phases have one plane
  for (int phase = 0; phase < l.h.phases(); ++phase) most_h = std::max(most_h, axis_taps(l.h, phase, 0).count);
  for (int first = 0; first < l.w.phases(); first += across) {
    int taps = 0;
    for (int phase = first; phase < std::min(first + across, l.w.phases()); ++phase) {
      taps += axis_taps(l.w, phase, 0).count;
    }
    most_w = std::max(most_w, taps);
  }
  const double groups = static_cast<double>(l.h.phases()) * static_cast<double>(ceil_div(l.w.phases(), across));
  return most_h * most_w * groups / (static_cast<double>(l.h.kernel) * l.w.kernel);
}

void choose_blocks(const ConvLayer& l, IgemmSm90Plan& p) {
  const int64_t all = l.device.multiprocessors;
  const double uneven = p.keep_halo ? 1 : unevenness(l, p.item_groups * p.tile.phases);
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
}  // namespace

int sector_unit(const ConvLayer& l) {
  const int sector = 32 / l.element;
  int unit = sector;
  for (const int axis : {0, 1, 2}) unit = gcd(unit, static_cast<int>(l.c.result.stride[axis] % sector));
  return unit;
}

ConvLayer::ConvLayer(const Problem& original, int64_t merged, const Device& gpu, bool raw_boxes, bool in_place,
                     bool im2col)
    : merge(static_cast<int>(merged)),
      problem(with_merged_groups(original, merged)),
      device(gpu),
      c(correlation(problem)),
      h(geometry(problem, 0)),
      w(geometry(problem, 1)),
      span_h(tap_span(h)),
      span_w(tap_span(w)),
      planes_h(static_cast<int>(used_planes(h).size())),
      planes_w(static_cast<int>(used_planes(w).size())),
      element(static_cast<int>(element_size(problem.dtype))),
      source(im2col ? Sm90Source::kIm2col : source_of(problem, planes_h, planes_w, raw_boxes)),
      weights_in_place(in_place) {}

// lines: of a warpgroup, where groups are columns, or kFlat. together: may_bring_together, and so they do.
std::optional<IgemmSm90Plan> plan_tile(const ConvLayer& l, const TileChoice& choice) {
  const auto& [tile, inner, second, lines, whole_sectors, repack, together, split, results] = choice;
  IgemmSm90Plan p;
  p.results = results;
  p.tile = tile;
  p.split = split;
  p.merge = l.merge;
  p.channels_adjacent = l.c.result.stride[1] == 1;
  p.to_blocks = l.problem.blocks.has_value();
  if (p.to_blocks && (split > 1 || !sm90_stores_blocks(1, tile, l.source))) return std::nullopt;
  p.exchanges = p.to_blocks && sm90_may_exchange(l.element, tile) && inner == Sm90Inner::kWidth &&
                l.problem.blocks->width < kSectorBytes / l.element;
  p.tile_m = (second == Second::kChannels ? 2 : 1) * kSm90TileM / tile.fold;
  p.in_turns = second == Second::kItems;
  p.whole_sectors = whole_sectors;
  p.row_phases = whole_sectors ? l.w.phases() : tile.phases;
  p.even_rows = sector_unit(l) * l.element % 16 == 0 && l.c.result.size[3] * l.element % 16 == 0;
  const bool in_half = l.c.source_channels * l.element <= kSm90RowBytes / 2;
  p.row_bytes = in_half && sm90_halves_rows(l.element, tile) ? kSm90RowBytes / 2 : kSm90RowBytes;
  p.parts = l.problem.dtype == DType::kFloat32 && !l.problem.allow_tf32 ? 2 : 1;
  p.source = repack ? Sm90Source::kTensor : l.source;
  p.repack = repack;
  p.slice = static_cast<int>(repack ? repack_slice(l.problem.batch, repacked_image_bytes(l.problem), kRepackHalf)
                                    : l.problem.batch);
  if (p.slice == 0) return std::nullopt;
  if (repack && l.planes_h * l.planes_w > kSm90MaxPlanes) return std::nullopt;
  p.inner = inner;
  p.origin_h = l.span_h.origin;
  p.origin_w = l.span_w.origin;
  p.slots_h = std::max(1, l.span_h.most);
  p.planes_h = l.planes_h;
  p.phases_h = l.h.phases();
  p.phases_w = l.w.phases();
  p.phase_groups = p.phases_h * static_cast<int>(ceil_div(p.phases_w, tile.phases));
  p.chunks = static_cast<int>(ceil_div(l.c.source_channels * l.element, p.row_bytes));
  p.m_tiles = static_cast<int>(ceil_div(l.c.result_channels, p.tile_m));
  p.stage_bytes = p.row_bytes * p.tile_m * tile.fold * p.parts;
  if (!choose_pixels(l, p, second, lines, together)) {
    if (p.source != Sm90Source::kTransposed) return std::nullopt;
    p.source = Sm90Source::kWarps;
    if (!choose_pixels(l, p, second, lines, false)) return std::nullopt;
  }
  if (std::max({p.halo.n, p.halo.h, p.halo.w, p.raw_width}) > 256) return std::nullopt;  // what a tensor map takes
  if (l.by_im2col() && (p.halo.n > kMostIm2colImages || std::max(p.halo.h, p.halo.w) > kMostIm2colPixels)) {
    return std::nullopt;
  }
  const int64_t rows = std::max({static_cast<int64_t>(p.row.n) * p.halo.n, static_cast<int64_t>(p.row.h) * p.halo.h,
                                 static_cast<int64_t>(p.row.w) * p.halo.w}) +
                       static_cast<int64_t>(p.halo_planes - 1) * p.plane_rows;
  if (rows * p.row_bytes > l.device.shared_bytes_per_block) return std::nullopt;
  p.halo_bytes = static_cast<int>(round_up(rows * p.row_bytes, 1024));
  if (results == Sm90Results::kCopied ? !choose_copies(l, p) : p.flat && p.channels_adjacent) return std::nullopt;
  if (!choose_raw_row(l, p)) return std::nullopt;
  const int64_t slots = static_cast<int64_t>(p.phase_groups) * p.planes_h * p.planes_w * p.chunks * tile.phases *
                        p.slots_h * p.slots_w;
  p.column_bytes = slots * p.stage_bytes;
  p.packed_bytes = l.problem.groups * p.m_tiles * p.column_bytes;
  // Slots that phases leave empty, and rows and channels that groups do, must not cost much more than the weights
  // and the zeros between merged groups.
  const int64_t weight_bytes = l.problem.w.numel() * l.merge * l.element * p.parts;
  if (!sm90_may_pack(p.packed_bytes, weight_bytes)) return std::nullopt;
  p.weights = weights_of(l, p);
  p.columns = static_cast<int>(l.problem.groups) * p.m_tiles * (p.phase_groups / p.item_groups);
  p.repacked_bytes = repack ? repacked_source(l.problem).stride[0] * p.slice * l.element : 0;
  const double items = static_cast<double>(p.tiles.n) * p.tiles.h * p.tiles.w * p.columns;
  if (items > (1 << 30)) return std::nullopt;
  p.items = static_cast<int>(items);
  choose_blocks(l, p);
  if (p.in_turns && p.keep_halo && !p.resident_weights) return std::nullopt;
  if (p.in_turns && p.item_groups > 1 && !p.keep_halo) return std::nullopt;
  if (split > 1) {
    if (!sm90_splits(tile) || l.by_im2col() || p.in_turns || p.items > most_clusters(l.device, split) ||
        p.planes_h * p.planes_w * p.chunks < split || sm90_sums_bytes(tile) > p.staging_at) {
      return std::nullopt;
    }
    p.blocks = p.items * split;
  }
  // M-major weights cost the epilogue an exchange between lanes.
  if (p.weights == Sm90Weights::kMajorM && sm90_pack_ms(p.packed_bytes) < kLeastPacking * estimate_ms(l, p)) {
    p.weights = Sm90Weights::kPacked;
  }
  return p;
}

}  // namespace deconv
